"""Where a forward pass spends its time: every part once, for every way of slimming."""

import pytest

import patchslim as ps
from patchslim.measure import BenchConfig, bench
from patchslim.measure.profile import profile
from small import make_host, make_images, plan_for, slim_of

MODELS = ("slim", "baseline", "baseline_same_embedding")


def test_the_profile_has_every_block_and_adds_up() -> None:
    """A clock that goes on by one each time it is read: every part takes one, and they sum to the whole."""
    host, slim = slim_of()
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    found = profile({"slim": slim, "baseline": host}, ps.inspect(host), make_images(2), clock=clock)
    assert found["parts"] == ["embedding", "block 1", "block 2", "block 3", "block 4", "head"]
    assert found["slim"] == found["baseline"] == [1.0] * 6


@pytest.mark.parametrize("way", ["carry", "cover", "merge", "predict", "threshold"])
def test_every_way_of_slimming_is_profiled(way: str) -> None:
    host = make_host()
    plan, weights = plan_for(host, way)
    config = BenchConfig(batch_sizes=[2], dtypes=["bfloat16"], seconds=0.01, profile=True)
    row = bench(ps.apply(host, plan, weights), host, config, images=make_images(2))["rows"][0]
    for name in MODELS:
        assert len(row["profile"][name]) == 6
        assert min(row["profile"][name]) > 0
