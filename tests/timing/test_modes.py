"""The modes of running: which go with a device, what each is ready to run, and what happens where one does not work."""

from functools import partial
from typing import Any

import pytest
import torch

from patchslim.errors import PatchslimError
from patchslim.timing import modes, time_side_by_side
from patchslim.timing.memory import out_of_memory
from patchslim.timing.modes import MODES, compiled, in_dtype, modes_for, prepare
from small import make_host, make_images, relative, slim_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_modes_by_device() -> None:
    assert modes_for(["auto"], CPU, False) == ["eager"]
    assert modes_for(["auto"], GPU, False) == list(MODES)
    assert modes_for(["auto"], GPU, True) == ["eager"]
    assert modes_for(["compiled", "auto", "compiled"], CPU, False) == ["eager", "compiled"]
    assert modes_for(["graph", "eager"], GPU, False) == ["eager", "graph"]
    for asked, threshold, words in (
        (["graph"], False, "CUDA device"),
        (["compiled"], True, "can't be compiled"),
        (["fast"], False, "no mode 'fast'"),
    ):
        with pytest.raises(PatchslimError, match=words):
            modes_for(asked, CPU, threshold)


def test_what_cant_be_compiled_is_not_compiled_again_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[str]()

    def broken(*_: Any) -> Any:
        tries.append("compile")
        raise ValueError("no compiler here")

    monkeypatch.setattr(modes, "compiled", broken)
    monkeypatch.setattr(modes, "recorded", lambda run, batch: lambda: run(batch))
    found = prepare(make_host(), make_images(), MODES)
    assert tries == ["compile"]
    assert list(found.ready) == ["eager", "graph"]
    assert found.failed == dict.fromkeys(("compiled", "compiled-graph"), "no compiler here")


def test_what_is_compiled_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced for real, by a backend that makes no code, as making it takes long and is not ours."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    images = make_images(2)
    for model in slim_of():
        assert relative(compiled(model, images)(images), model(images)) < 1e-5


def test_both_models_run_equally_often() -> None:
    model, slim = slim_of()
    calls = {"host": 0, "slim": 0}
    model.register_forward_hook(lambda *args: calls.__setitem__("host", calls["host"] + 1))
    slim.register_forward_hook(lambda *args: calls.__setitem__("slim", calls["slim"] + 1))
    timings = time_side_by_side([slim, model], make_images(2), seconds=0.05)
    assert calls["host"] == calls["slim"] >= 5
    for timing in timings:
        assert 0 < timing.low <= timing.median <= timing.high
        assert timing.throughput(2) == pytest.approx(2 / timing.median)


def test_other_errors_are_not_taken_for_memory() -> None:
    assert not out_of_memory(RuntimeError("shapes differ"))
    assert out_of_memory(MemoryError())
    wrapped = ValueError("the compiler gave up")
    wrapped.__cause__ = torch.OutOfMemoryError("no")
    assert out_of_memory(wrapped)


def test_casting_copies_only_where_it_must() -> None:
    host = make_host()
    assert in_dtype(host, "float32") is host
    half = in_dtype(host, "bfloat16")
    assert half is not host
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """All modes run there, give the same logits, and say what memory they take."""
    batch = make_images(4).cuda()
    for model in (own.cuda() for own in slim_of()):
        found = prepare(model, batch, MODES)
        assert found.failed == {}
        for ready in found.ready.values():
            assert relative(ready.call(), model(batch)) < 1e-2
            assert ready.peak_memory is not None
            assert ready.peak_memory > 0
