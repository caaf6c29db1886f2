"""Plans for a clock: of every kind, with the counts asked for, and models that run as real ones do."""

from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.search.sketch import sketch, slimmed
from small import make_host, make_images

WAYS: dict[str, dict[str, Any]] = {
    "drop": {"removed": "drop"},
    "carry": {"removed": "carry"},
    "static merge": {},
    "fixed groups": {"groups": "fixed"},
    "matched merge": {"select": "matched"},
    "matched drop": {"select": "matched", "removed": "drop"},
    "predicted merge": {"select": "predicted"},
    "predicted drop": {"select": "predicted", "removed": "drop"},
}
COUNTS = [(16, 16, 16), (12, 9, 5), (8, 8, 8), (16, 9, 9), (8, 4, 2)]


@pytest.mark.parametrize("way", WAYS)
def test_a_sketch_keeps_what_it_is_told_and_runs(kind: str, way: str) -> None:
    model, config = make_host(kind), ps.SearchConfig(**WAYS[way])
    host = open_host(model)
    for counts in COUNTS:
        last = counts[-1] if host.info.reads_patches else 0
        plan = sketch(host.info, config, (*counts, last))
        assert (plan.counts, plan.select, plan.removed) == ((*counts, last), config.select, config.removed)
        slim = slimmed(host, plan)
        assert slim.plan is plan
        with torch.inference_mode():
            assert slim(make_images(2)).shape == (2, 7)
    assert not hasattr(model, "plan")


def test_patches_of_a_static_sketch_are_mixed_and_merge_into_many() -> None:
    """A clock has to see the entrance that sorts tokens, and sums of several patches."""
    info = ps.inspect(make_host())
    dropped = sketch(info, ps.SearchConfig(removed="drop"), (9, 6, 3, 0))
    assert dropped.order != sorted(dropped.order)
    own = sketch(info, ps.SearchConfig(), (9, 6, 3, 0))
    merged = sketch(info, ps.SearchConfig(groups="fixed"), (9, 6, 3, 0))
    assert merged.kept == dropped.kept == own.kept
    assert (own.groups, merged.groups) == ("own", "fixed")
    assert merged.into is not None
    joined = [target for target in merged.into if target >= 0]
    assert len(joined) == 16 - 3
    assert len(set(joined)) > 6
