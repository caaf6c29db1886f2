"""What other methods would make of a budget, for a clock: plans without having seen an image."""

from patchslim.hosts import HostInfo
from patchslim.macs import plan_macs
from patchslim.methods.base import GROUPS, METHODS, names
from patchslim.plan import SlimPlan
from patchslim.search.cost import MacCost

SLACK = 1.001  # of the MACs: counts are whole numbers


def sketches_beside(name: str, info: HostInfo, plan: SlimPlan) -> dict[str, SlimPlan]:
    """Plans of our other methods, by name, at the MACs of a plan and with removals in the same proportion."""
    most, found = SLACK * plan_macs(info, plan), dict[str, SlimPlan]()
    for other in names():
        if METHODS[other].group != GROUPS[0] or other == name:
            continue
        draft = METHODS[other]().draft(info)
        if draft is None:
            continue
        cost, schedule = MacCost(draft), draft.schedule()
        removals = schedule.removals(plan.counts)
        if not any(removals):
            continue
        counts = schedule.fit(removals, lambda own, cost=cost: cost.of(own) <= most)
        if cost.of(counts) <= most:
            found[other] = draft.sketch(counts)
    return found
