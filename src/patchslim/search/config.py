"""The settings of a search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from patchslim.errors import BudgetError
from patchslim.plan import Groups, Mode, PredictorKind, Removed, Select
from patchslim.timing.modes import MODES
from patchslim.timing.running import DTYPES

Score = Literal["effect", "coverage", "impact", "attention", "random", "radial", "uniform"]
Distance = Literal["effect", "keys"]
SCORES: tuple[str, ...] = get_args(Score)
OPEN = ("score", "removed", "predictor", "groups", "distance")  # settings that may be left open
SPREADS = ("coverage", "random", "radial", "uniform")  # what can say which patches others join


@dataclass(frozen=True)
class SearchConfig:
    """What to search for, and how. Give a tolerance, a MAC ratio or a speed-up; none is the paper's tolerance of 0.01.

    A speed-up is that of whole batches on the device of the model, against the model as it comes, each in its fastest
    mode, as `bench` measures it.

    What is left at None gets the usual value for the way of choosing: removed patches merge (with a threshold they
    can't, and with a static score or block tuning they drop); static ones stay that cover the others best, or, where
    patches drop, by the effect of their removal (by the paper's impact where they are carried, or where block tuning
    is asked for); blocks are tuned for 3 epochs where the paper's Algorithm 1 decides; G knows the image's average
    patch, except with a threshold, which compares images; matched patches are as far apart as it matters to the
    readout.
    """

    tolerance: float | None = None  # ε: relative error of a block's reconstruction, or of the readout
    target_macs: float | None = None  # MACs of the slim model over the host's
    target_speedup: float | None = None  # the host's time over the slim model's
    speed_batch_size: int = 32  # images in a batch that is timed
    speed_dtype: str = "float32"  # of weights and images that are timed
    speed_mode: str = "auto"  # eager, compiled, graph, compiled-graph; auto: on a GPU whichever is fastest, else eager
    score: Score | None = None
    select: Select = "static"
    removed: Removed = None  # type: ignore[assignment]  # None, until it is resolved
    mode: Mode = "top-k"  # of predicted patches
    predictor: PredictorKind = None  # type: ignore[assignment]  # the module G; None, until it is resolved
    groups: Groups | None = None  # of static patches that merge: each image's own, or the same for all
    distance: Distance | None = None  # of matched patches: by what a difference does to the readout, or by keys
    choosing_blocks: int | None = None  # where images choose or group: at most so many blocks do; None: as many as pay
    predictor_epochs: int = 60  # epochs over the images in which G learns
    step: int = 10  # r': patches added at a time
    tune_epochs: int = None  # type: ignore[assignment]  # epochs of block tuning on cached features
    learning_rate: float = 5e-5  # of block tuning
    batch_size: int = 32
    cache_gib: float = 2.0  # bound on cached features; past it they are computed again
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_choices()
        self._resolve()
        self._check_numbers()

    @property
    def top_down(self) -> bool:
        """Whether the paper's Algorithm 1 decides; else errors measured on the whole network do."""
        return self.select == "static" and self.removed != "merge" and self.score != "effect"

    @property
    def in_pairs(self) -> bool:
        """Whether a block removes one patch of each of some pairs, and so no more than half."""
        return self.select == "matched" or (self.removed == "merge" and self.groups != "own")

    def _resolve(self) -> None:
        """Put in what was left open; refuse what has no part in this way of choosing."""
        put = object.__setattr__  # the usual way to set a field of a frozen dataclass once
        given = dict(vars(self))  # as given: None where it was left open
        if self.distance is not None and self.select != "matched":
            raise BudgetError(f"A distance is for patches that are matched, not {self.select}; leave it out.")
        put(self, "distance", self.distance or ("effect" if self.select == "matched" else None))
        put(self, "predictor", given["predictor"] or ("mlp" if self.mode == "threshold" else "context"))
        tuned = self.select == "static" and bool(given["tune_epochs"])  # asks for Algorithm 1
        scored = self.select == "static" and given["score"] not in (None, "coverage")
        put(self, "removed", given["removed"] or ("drop" if tuned or scored or self.mode == "threshold" else "merge"))
        self._resolve_groups()
        if self.removed == "carry" and self.select != "static":
            raise BudgetError(f"Removed patches can't be carried along when {self.select}; choose drop or merge.")
        if self.mode == "threshold" and (self.select != "predicted" or self.removed != "drop"):
            raise BudgetError(
                "A threshold goes with predicted patches that are dropped: select predicted, removed drop."
            )
        self._check_score()
        usual = "impact" if self.removed == "carry" or tuned else "effect"
        ranked = self.select == "predicted" or (self.select == "static" and self.removed != "merge")
        put(self, "score", self.score or ("coverage" if self.groups == "own" else usual if ranked else None))
        if not self.top_down and self.tune_epochs:
            raise BudgetError(
                "Block tuning goes with the paper's Algorithm 1, that is with static patches dropped or carried by "
                "a score other than effect; set tune_epochs to 0."
            )
        put(self, "tune_epochs", (3 if self.top_down else 0) if given["tune_epochs"] is None else self.tune_epochs)

    def _resolve_groups(self) -> None:
        merges = self.select == "static" and self.removed == "merge"
        if self.groups is not None and not merges:
            raise BudgetError("Groups are those of static patches that merge; leave them out.")
        object.__setattr__(self, "groups", self.groups or ("own" if merges else None))

    def _check_score(self) -> None:
        """Refuse a score that can't rank what is to be ranked."""
        if self.score is None:
            return
        if self.groups == "own":
            if self.score not in SPREADS:
                raise BudgetError(
                    f"Static patches that others join are chosen by {', '.join(SPREADS)}, not by {self.score}; "
                    "choose one of them, or drop the others."
                )
        elif self.select == "matched" or (self.select == "static" and self.removed == "merge"):
            raise BudgetError(f"Patches that are {self.select} to merge are ranked by likeness; leave the score out.")
        elif self.score == "coverage":
            raise BudgetError("Coverage is for static patches that others join: removed merge, groups own.")
        if self.select == "predicted" and self.score not in ("effect", "impact", "attention"):
            raise BudgetError(f"A predictor learns effect, impact or attention; {self.score} is alike for all images.")
        if self.removed == "carry" and self.score == "effect":
            raise BudgetError("The effect score is that of patches that leave; carried ones need another, as impact.")

    def _check_choices(self) -> None:
        choices: tuple[tuple[str, Any, str], ...] = (
            ("score", SCORES, "There is no score {!r}"),
            ("select", get_args(Select), "Patches can't be selected {!r}"),
            ("removed", get_args(Removed), "Removed patches can't {!r}"),
            ("mode", get_args(Mode), "There is no mode {!r}"),
            ("predictor", get_args(PredictorKind), "There is no predictor {!r}"),
            ("groups", get_args(Groups), "There are no groups {!r}"),
            ("distance", get_args(Distance), "There is no distance {!r}"),
            ("speed_dtype", tuple(DTYPES), "There is no dtype {!r}"),
            ("speed_mode", ("auto", *MODES), "There is no mode to time in called {!r}"),
        )
        for name, known, words in choices:
            value = getattr(self, name)
            if value not in known and not (value is None and name in OPEN):
                raise BudgetError(f"{words.format(value)}; choose one of {', '.join(known)}.")

    def _check_numbers(self) -> None:
        if sum(limit is not None for limit in (self.tolerance, self.target_macs, self.target_speedup)) > 1:
            raise BudgetError("Give a tolerance, a MAC ratio or a speed-up: one of them, not both.")
        if self.target_speedup is not None and not 1 < self.target_speedup < math.inf:
            raise BudgetError(f"The speed-up has to be a number above 1, not {self.target_speedup}; try 1.6.")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise BudgetError(f"The tolerance is a relative error and can't be {self.tolerance}; try 0.01.")
        if self.target_macs is not None and not 0 < self.target_macs < 1:
            raise BudgetError(f"The MAC ratio has to lie between 0 and 1, not at {self.target_macs}; try 0.6.")
        least = {"step": 1, "tune_epochs": 0, "batch_size": 1, "predictor_epochs": 1, "speed_batch_size": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BudgetError(f"{name} has to be at least {low}, not {getattr(self, name)}.")
        alike = self.select == "static" and self.groups != "own"
        if self.choosing_blocks is not None and (alike or self.choosing_blocks < 1):
            raise BudgetError(
                "choosing_blocks is for images that choose or group patches, not for static ones that are dropped; "
                "give at least 1."
            )
        if not 0 < self.learning_rate < math.inf:
            raise BudgetError(f"learning_rate has to be a number above 0, not {self.learning_rate}.")
        if not self.cache_gib >= 0:
            raise BudgetError(f"cache_gib can't be below 0, as {self.cache_gib} is.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return asdict(self)
