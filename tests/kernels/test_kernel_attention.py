"""Attention's kernels against the tensor operations that say what they compute; interpreted where there is no GPU."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_inputs import DEVICE, DTYPES, SHAPES, SIZES, drawn, kernels_run, keys_of, sizes_of
from patchslim.kernels import attention, available
from patchslim.kernels.attention import attend, class_attention, plain, size_rows, sized

pytest.importorskip("triton")


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 90), st.sampled_from([4, 12, 64]), st.data())
@settings(max_examples=8, deadline=None)
def test_attention_with_sizes(dtype: torch.dtype, batch: int, heads: int, n_in: int, width: int, data: Any) -> None:
    normal, n = drawn(data.draw(st.integers(0, 99))), data.draw(st.integers(1, n_in))
    k, v = (keys_of(normal, batch, heads, n_in, width).to(dtype) for _ in range(2))
    q, size = normal(batch, heads, n, width).to(dtype), sizes_of(data.draw(SIZES), normal, batch, n_in)
    size = torch.ones(1, n_in, device=DEVICE) if size is None else 9 * size  # logits by as much as 5 more
    found = attend(q, k, v, size_rows(size, k), 0.4)
    wanted = sized(size)(q.float(), k.float(), v.float(), scale=0.4, dropout=0.0, fused=False)
    close = 1e-5 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(found.float(), wanted, rtol=close, atol=close)
    assert found.transpose(1, 2).is_contiguous()  # what the projection reads without a copy
    wanted = plain(q.float(), k.float(), v.float(), scale=0.4, dropout=0.0, fused=False)
    for launches in (True, False):
        with patch.object(attention, "worth_launching", lambda kernel, answer=launches: answer):
            once = attend(q, k, v, None, 0.4)
        torch.testing.assert_close(once.float(), wanted, rtol=close, atol=close)
        assert once.transpose(1, 2).is_contiguous()


def test_sizes_of_another_precision_are_read_anew() -> None:
    """Under autocast keys are not what tokens are."""
    normal = drawn(0)
    k, q, size = keys_of(normal, 1, 2, 9, 8), normal(1, 2, 4, 8), normal(1, 9).abs() + 1
    with kernels_run():
        wanted = sized(size)(q, k, k, scale=0.4, dropout=0.0, fused=True)
        for log_size in (size_rows(size, k), size_rows(size, k.half())):
            found = sized(size, log_size)(q, k, k, scale=0.4, dropout=0.0, fused=True)
            assert torch.equal(found, wanted)


@pytest.mark.skipif(DEVICE == "cpu", reason="takes the interpreter minutes")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "n", "n_in"), [(3, 100, 100), (2, 300, 600), (1, 4097, 4097), (1, 16, 4097)])
def test_many_keys(dtype: torch.dtype, batch: int, n: int, n_in: int) -> None:
    normal = drawn(0)
    k, v, q = keys_of(normal, batch, 2, n_in, 64), keys_of(normal, batch, 2, n_in, 64), normal(batch, 2, n, 64)
    size = sizes_of("own", normal, batch, n_in)
    assert size is not None
    found = attend(q.to(dtype), k.to(dtype), v.to(dtype), size_rows(size, k.to(dtype)), 0.125)
    wanted = sized(size)(q, k, v, scale=0.125, dropout=0.0, fused=False)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=2e-5 if dtype == torch.float32 else 1e-2)


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
