"""The bars on a terminal: what every kind of event says, and that no event of any method trips them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

import patchslim as ps
from patchslim.cli import terminal
from patchslim.methods.base import METHODS
from small import make_host, make_images

HOST = make_host()
INFO = ps.inspect(HOST)
QUICK = {"epochs": 2, "tune_epochs": 1, "step": 4}


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the bar was told, in the order of time."""
    found: list[dict[str, Any]] = []

    @contextmanager
    def shown(what: str, *_: Any) -> Iterator[Any]:
        found.append({"description": what})
        yield lambda **changes: found.append(changes)

    monkeypatch.setattr(terminal, "shown", shown)
    return found


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_event_of_a_method_can_be_shown(method: str, moves: list[dict[str, Any]]) -> None:
    known = ps.methods.settings_of(method).keys() - ps.methods.make(method).idle.keys()
    own = {key: value for key, value in QUICK.items() if key in known}
    heard: list[Mapping[str, Any]] = []
    with terminal.show_search(INFO) as listen:

        def both(event: Mapping[str, Any]) -> None:
            heard.append(event)
            listen(event)

        ps.slim(HOST, make_images(4), ps.methods.make(method, own), macs=0.8, progress=both)
    assert len(moves) == 1 + sum(event["event"] in terminal.DOING for event in heard)
    assert all(0 <= (move.get("completed") or 0) < INFO.depth + 1 for move in moves)


def test_a_measured_search_in_words(moves: list[dict[str, Any]]) -> None:
    with terminal.show_search(INFO) as listen:
        listen({"event": "distances"})
        listen({"event": "candidate", "number": 65, "error": 0.0123456, "best": 0.01})
        listen({"event": "candidate", "number": 999, "error": 0.02, "best": 0.01})
        listen({"event": "stage", "macs_ratio": 0.75, "error": None})
        listen({"event": "unheard of"})
    assert moves == [
        {"description": "searching"},
        {"description": "learning", "now": "how far apart patches are", "completed": None},
        {"description": "measuring", "now": "candidate 65: error 0.0123, best 0.01", "completed": 2},
        {"description": "measuring", "now": "candidate 999: error 0.02, best 0.01", "completed": 3},
        {"description": "removing", "now": "0.750 of the MACs: taking derivatives", "completed": None},
    ]


def test_a_recovery_stage_by_stage(moves: list[dict[str, Any]]) -> None:
    with terminal.show_recovery() as listen:
        listen({"event": "step", "stage": "blocks", "done": 1, "total": 4})
        listen({"event": "reconstructed", "block": 1, "after": 0.5})
        listen({"event": "step", "stage": "distillation", "done": 1, "total": 20})
        listen({"event": "step", "stage": "distillation", "done": 2, "total": 20})
        listen({"event": "epoch", "epoch": 1, "held_out": 1.25, "best": 1.125})
    assert moves == [
        {"description": "recovering"},
        {"total": 4, "description": "block by block", "now": ""},
        {"completed": 1},
        {"now": "block 1: error 0.5"},
        {"total": 20, "description": "distilling", "now": ""},
        {"completed": 1},
        {"completed": 2},
        {"now": "epoch 1: held-out loss 1.25, best 1.125"},
    ]


def test_a_comparison_cell_by_cell(moves: list[dict[str, Any]]) -> None:
    with terminal.show_comparison() as listen:
        listen({"event": "cell", "cell": "merge@0.6", "done": 1, "total": 4})
        listen({"event": "learning", "patches_per_block": [16, 8]})
        listen({"event": "epoch", "epoch": 2, "epochs": 3})
        listen({"event": "row", "cell": "merge@0.6", "done": 2, "total": 4})
    assert moves[1:] == [
        {"description": "merge@0.6", "total": 4, "completed": 1, "now": ""},
        {"now": "patches per block: [16, 8]"},
        {"now": "recovering, epoch 2 of 3"},
        {"description": "", "total": 4, "completed": 2, "now": ""},
    ]
