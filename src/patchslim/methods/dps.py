"""`dps`: the paper's dynamic method."""

from typing import ClassVar

from patchslim.evidence.scores import Score
from patchslim.methods.base import register
from patchslim.methods.predict import Predict, Removed
from patchslim.steps.selector import SelectorKind


@register("dps")
class DPS(Predict):
    """The paper's dynamic method: its module G (channels pooled, a linear layer over the patch positions) learns the
    impact score of each image, and the other patches leave.

    Counts per block come from the measured search.
    Take it to reproduce the paper.
    """

    removed: Removed = "drop"

    group: ClassVar[str] = "the paper"
    score: ClassVar[Score] = "impact"
    selector: ClassVar[SelectorKind] = "pool"
