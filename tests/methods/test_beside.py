"""What other methods would make of a plan's MACs, for a clock."""

import pytest

import patchslim as ps
from patchslim.macs import plan_macs
from patchslim.methods import Cover, Merge, names
from patchslim.methods.base import GROUPS, METHODS
from patchslim.methods.beside import sketches_beside
from small import make_host


@pytest.mark.parametrize("kind", ["class", "mean with prefix"])
def test_our_other_methods_are_drafted_at_the_same_macs(kind: str) -> None:
    info = ps.inspect(make_host(kind))
    plan = Merge().sketch(info, (14, 10, 8, 8 if info.reads_patches else 0))
    found = sketches_beside("merge", info, plan)
    assert set(found) == {name for name in names() if METHODS[name].group == GROUPS[0]} - {"merge"}
    for name, other in found.items():
        assert other.method == name
        assert 0.9 * plan_macs(info, plan) < plan_macs(info, other) <= 1.001 * plan_macs(info, plan)


def test_a_plan_that_keeps_everything_has_none_beside_it() -> None:
    info = ps.inspect(make_host())
    assert sketches_beside("cover", info, Cover().sketch(info, (16, 16, 16, 0))) == {}
