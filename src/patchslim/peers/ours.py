"""patchslim's own modes, as rows beside the others."""

from __future__ import annotations

from typing import Any

from patchslim.errors import BudgetError
from patchslim.macs import plan_macs
from patchslim.peers.method import Cell, Job, Unreachable
from patchslim.search import SearchConfig
from patchslim.search.run import Session
from patchslim.slim import apply

# Algorithm 1 tunes blocks on its way; a comparison tunes everything alike, afterwards or not at all.
UNTUNED: dict[str, Any] = {"tune_epochs": 0}
MODES: dict[str, dict[str, Any]] = {
    "ps-static": {"removed": "drop"},
    "ps-merge": {"removed": "merge"},
    "ps-predicted": {"select": "predicted"},
    "ps-predicted-drop": {"select": "predicted", "removed": "drop"},
    "ps-matched": {"select": "matched"},
    "impact": {"score": "impact"} | UNTUNED,
    "dps": {"select": "predicted", "removed": "drop", "score": "impact", "predictor": "pool"},
    "attention": {"score": "attention"} | UNTUNED,
    "random": {"score": "random"} | UNTUNED,
    "radial": {"score": "radial"} | UNTUNED,
    "spread": {"score": "uniform"} | UNTUNED,
}


class Ours:
    """One search serves all ratios."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session: Session | None = None

    def build(self, job: Job, ratio: float) -> Cell | Unreachable:
        """What `patchslim slim --target-macs` makes."""
        info, settings = job.host.info, job.config
        try:
            config = SearchConfig(
                target_macs=ratio, batch_size=settings.batch_size, seed=settings.seed, **MODES[self.name]
            )
            if self.session is None:
                memory = None if job.memory is None else job.memory / self.name
                self.session = Session(job.host.model, job.images, config, checkpoint=memory, listen=job.listen)
            plan, tuned = self.session.find(config)
        except BudgetError as error:
            return Unreachable(str(error).rstrip("."))
        slim = apply(job.host.model, plan, tuned)
        return Cell(slim, plan_macs(info, plan), {"patches_per_block": list(plan.counts)})
