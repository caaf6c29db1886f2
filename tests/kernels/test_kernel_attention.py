"""Attention's kernels against the tensor operations that say what they compute; interpreted where there is no GPU."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_inputs import DEVICE, SHAPES, drawn, kernels_run, keys_of
from patchslim.kernels import attention, available
from patchslim.kernels.attention import attend, class_attention, plain, sized

pytest.importorskip("triton")


@given(SHAPES, st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_attention_with_sizes(shape: Any, n: int, shared: bool, seed: int) -> None:
    batch, heads, n_in, width = shape
    normal = drawn(seed)
    k, v, q = keys_of(normal, *shape), keys_of(normal, *shape), normal(batch, heads, min(n, n_in), width)
    size = normal(1 if shared else batch, n_in).abs() + 1
    found = attend(q, k, v, size, 0.4)
    wanted = sized(size)(q, k, v, scale=0.4, dropout=0.0, fused=False)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.transpose(1, 2).is_contiguous()  # what the projection reads without a copy
    wanted = plain(q, k, v, scale=0.4, dropout=0.0, fused=False)
    for launches in (True, False):
        with patch.object(attention, "worth_launching", lambda kernel, answer=launches: answer):
            once = attend(q, k, v, None, 0.4)
        torch.testing.assert_close(once, wanted, rtol=1e-5, atol=1e-5)
        assert once.transpose(1, 2).is_contiguous()


@given(SHAPES, st.sampled_from(["none", "shared", "own"]), st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_the_class_tokens_attention(shape: Any, sizes: str, seed: int) -> None:
    batch, heads, n_in, width = shape
    normal = drawn(seed)
    k, q = keys_of(normal, *shape), normal(batch, heads, 1, width)
    size = None if sizes == "none" else normal(1 if sizes == "shared" else batch, n_in).abs() + 1
    wanted = class_attention(q, k, size, 0.4)
    with kernels_run() as asked:
        torch.testing.assert_close(class_attention(q, k, size, 0.4), wanted, rtol=1e-5, atol=1e-6)
    assert asked
    torch.testing.assert_close(wanted.sum(dim=1), torch.ones(batch, device=DEVICE))


def test_attention_of_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = drawn(0)
    q, k, v = normal(1, 2, 5, 8), keys_of(normal, 1, 2, 9, 8), keys_of(normal, 1, 2, 9, 8)
    wanted = plain(q, k, v, scale=0.4, dropout=0.0, fused=True)
    monkeypatch.setattr(attention, "worth_launching", lambda kernel: True)
    monkeypatch.setattr(attention, "small_kernel_for", lambda k: True)
    found = plain(q, k, v, scale=0.4, dropout=0.0, fused=True)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_kernel_that_competes_is_launched_once_and_then_in_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = False
    monkeypatch.setattr(available, "KERNELS", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    monkeypatch.setattr(available, "_launched", set())
    assert [available.worth_launching("a") for _ in range(3)] == [True, False, False]
    recording = True
    assert [available.worth_launching("a") for _ in range(2)] == [True, True]
    assert not available.worth_launching("b")  # it can't be compiled now


def test_training_and_the_cpu_do_without() -> None:
    assert not available.kernels_for(torch.zeros(1, 1, 4, 4))
    if DEVICE == "cuda":
        assert available.kernels_for(torch.zeros(1, 1, 4, 4, device="cuda")) is not torch.is_grad_enabled()
