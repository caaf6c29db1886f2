"""Uniform pruning: equal counts, patches by the paper's score."""

from patchslim.macs import macs_of_counts
from patchslim.peers.uniform import Uniform
from patchslim.plan import SlimPlan
from peer_jobs import built, job_of
from small import make_host


def test_the_same_patches_in_every_block() -> None:
    job = job_of(make_host())
    plan = built(Uniform(), job, 0.6).module.plan
    assert isinstance(plan, SlimPlan)
    assert len({tuple(kept) for kept in plan.kept[:-1]}) == 1
    assert plan.kept[-1] == []
    one_more = [len(plan.kept[0]) + 1] * 3 + [0]
    assert macs_of_counts(job.host.info, one_more) > job.budget(0.6)


def test_pooled_heads_keep_them_to_the_end() -> None:
    plan = built(Uniform(), job_of(make_host("mean")), 0.6).module.plan
    assert isinstance(plan, SlimPlan)
    assert len({tuple(kept) for kept in plan.kept}) == 1
