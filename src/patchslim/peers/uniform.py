"""The paper's uniform pruning (its Table 3): every block keeps the same number of patches."""

from __future__ import annotations

from patchslim.hosts import HostInfo
from patchslim.macs import macs_of_counts
from patchslim.peers.fit import first_fitting, too_low
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.plan import make_plan
from patchslim.search import SearchConfig
from patchslim.search.features import Features
from patchslim.search.ledger import Ledger
from patchslim.search.topdown import TopDown
from patchslim.slim import apply


def counts_of(info: HostInfo, n: int) -> list[int]:
    """n patches in every block; where only prefix tokens are read, none in the last."""
    return [*[n] * (info.depth - 1), n if info.reads_patches else 0]


class Uniform:
    """Patches by the paper's impact score, top-down, the counts alone are uniform."""

    name = "uniform"

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """The most patches per block that fit."""
        info = job.host.info

        def macs(n: int) -> int:
            return macs_of_counts(info, counts_of(info, n))

        n = first_fitting(range(info.patches, 0, -1), macs, job.budget(ratio))
        if n is None:
            return too_low(job, "Uniform pruning", ratio, macs(1))
        config = SearchConfig(target_macs=ratio, score="impact", tune_epochs=0, seed=job.config.seed)
        features = Features(job.host, job.images, job.config.batch_size, config.cache_gib * 2**30)
        counts = dict(enumerate(counts_of(info, n), start=1))
        partial = TopDown(job.host, features, config, Ledger(), job.listen).at_counts(counts, tune=False)
        kept = [partial.order[:count] for count in counts.values()]
        plan = make_plan(info, kept, provenance={"method": "uniform"})
        return Cell(apply(job.host.model, plan), macs(n), {"patches_per_block": list(counts.values())})
