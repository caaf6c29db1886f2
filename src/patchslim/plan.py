"""SlimPlan: which patches each block computes, how they are chosen, and for which model.

Plain data, checked, kept as versioned JSON.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from patchslim.errors import PlanError
from patchslim.files import read_json, write_text
from patchslim.hosts.base import PATCH_READOUTS, HostInfo

PLAN_VERSION = 3  # static patches that merge without fixed groups are of version 3
OLDEST_VERSION = 1  # static drop and carry only; reads as it is
Select = Literal["static", "predicted", "matched"]
Removed = Literal["drop", "carry", "merge"]
Groups = Literal["own", "fixed"]
Mode = Literal["top-k", "threshold"]
PredictorKind = Literal["context", "mlp", "pool"]
STAYS = -1  # in `into`: this patch merges into none
SPEED = "speed"  # in `provenance`: what a plan that was made for a speed-up predicts


class HostShape(BaseModel):
    """What a plan has to know of the model it was made for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    depth: int = Field(ge=1, le=4096)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    prefix_tokens: int = Field(ge=0)
    patches: int = Field(ge=1, le=2**20)
    grid: list[int] = Field(min_length=2, max_length=2)
    readout: str

    @classmethod
    def of(cls, info: HostInfo) -> HostShape:
        """The part of a host's description that a plan depends on."""
        fields = {name: getattr(info, name) for name in cls.model_fields if name != "grid"}
        return cls(**fields, grid=list(info.grid))


class PredictorSpec(BaseModel):
    """The module G of the paper's dynamic variant: which one, how its scores choose, and whose weights it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: PredictorKind = "mlp"
    hidden: int = Field(default=0, ge=0)  # width of the hidden layer, where there is one
    mode: Mode = "top-k"
    thresholds: list[float] | None = None  # per block, for mode threshold: patches with a higher score stay
    average_macs: int | None = Field(default=None, ge=0)  # mean over the images it was calibrated on
    weights: str  # fingerprint of the weights trained with this plan


class DistanceSpec(BaseModel):
    """By what distance patches are matched, where it is not that of their keys, and whose weights it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    channels: int = Field(ge=1)
    weights: str  # fingerprint of the weights found with this plan


class SlimPlan(BaseModel):
    """How many patches each block computes, which, what becomes of the others, and how it came about.

    `static`: `kept[l - 1]` lists, in ascending order, the patches block `l` computes (the paper's masks m_1 … m_L);
    patches are numbered 0 … N-1 row by row, prefix tokens are not counted and always computed. Later blocks keep a
    subset of earlier ones. With `merge`, a removed patch joins the kept one it resembles most, in each image its own;
    or, with fixed groups, `into[i]` is the patch that patch `i` joins in the block that removes it, in all images.
    `predicted` and `matched`: every image chooses its own, `patches_per_block` of them. With `merge`, the blocks in
    `drops` drop instead (where groups are fixed, their patches join none).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = PLAN_VERSION
    host: HostShape
    select: Select = "static"
    removed: Removed = "drop"
    patches_per_block: list[int] | None = None
    drops: list[int] = Field(default_factory=list)
    predictor: PredictorSpec | None = None
    distance: DistanceSpec | None = None
    into: list[int] | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)
    kept: list[list[int]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not OLDEST_VERSION <= self.version <= PLAN_VERSION:
            raise ValueError(f"plan version {self.version} is not {OLDEST_VERSION} to {PLAN_VERSION}")
        if self.select == "static":
            self._check_static()
        else:
            self._check_per_image()
        if self.host.readout in PATCH_READOUTS and not self.counts[-1]:
            raise ValueError(f"the {self.host.readout} readout needs at least one patch in the last block")
        return self

    def _check_depth(self, blocks: int) -> None:
        if blocks != self.host.depth:
            raise ValueError(f"it has {blocks} blocks where the model has {self.host.depth}")

    def _check_static(self) -> None:
        """Nested patch lists, and groups that follow them."""
        if self.patches_per_block is not None or self.predictor or self.distance:
            raise ValueError("a static plan lists its patches in kept; it has no counts and no chooser beside it")
        self._check_depth(len(self.kept))
        outer = set(range(self.host.patches))
        for block, kept in enumerate(self.kept, start=1):
            if sorted(set(kept)) != kept:
                raise ValueError(f"the patches of block {block} are not in ascending order or repeat")
            stray = set(kept) - set(range(self.host.patches))
            if stray:
                raise ValueError(
                    f"block {block} keeps patch {min(stray)}, but patches are 0 to {self.host.patches - 1}"
                )
            if not set(kept) <= outer:
                patch = min(set(kept) - outer)
                raise ValueError(f"it is not nested: block {block} keeps patch {patch}, an earlier one does not")
            outer = set(kept)
        if self.into is not None:
            self._check_groups(self.into)
        self._check_drops(self.groups == "own")

    def _check_drops(self, possible: bool) -> None:
        strays = [block for block in self.drops if not 1 <= block <= self.host.depth]
        if strays or (self.drops and not possible):
            raise ValueError("drops lists blocks of a plan that merges elsewhere")

    def _check_groups(self, into: list[int]) -> None:
        if self.removed != "merge":
            raise ValueError("groups (into) are for removed patches that merge")
        if len(into) != self.host.patches:
            raise ValueError(f"into has {len(into)} entries for {self.host.patches} patches")
        stays = self._stays()
        for patch, target in enumerate(into):
            if target == STAYS:
                continue
            if not 0 <= target < self.host.patches or stays[target] <= stays[patch]:
                raise ValueError(f"patch {patch} merges into {target}, which is not there when {patch} leaves")

    def _check_per_image(self) -> None:
        """Counts that fall, and what the way of choosing needs."""
        if self.kept or self.into is not None or self.patches_per_block is None:
            raise ValueError(f"a {self.select} plan has patches_per_block, not lists of patches")
        if self.removed == "carry":
            raise ValueError("carry goes with static plans only")
        self._check_depth(len(self.patches_per_block))
        above = self.host.patches
        for block, count in enumerate(self.patches_per_block, start=1):
            if not 0 <= count <= above:
                raise ValueError(f"block {block} keeps {count} patches of {above} that come in")
            if count == 0 and block < self.host.depth:
                raise ValueError(f"block {block} keeps no patch; at least one stays until the last block")
            if self.in_pairs(block) and 0 < count < above // 2:
                raise ValueError(
                    f"block {block} keeps {count} of {above} patches; matching in pairs keeps at least half"
                )
            above = count
        self._check_drops(self.removed == "merge")
        self._check_predictor()

    def _check_predictor(self) -> None:
        spec = self.predictor
        if self.distance is not None and self.select != "matched":
            raise ValueError("a distance goes with matched patches")
        if (self.select == "predicted") != (spec is not None):
            raise ValueError("a plan has a predictor exactly when its patches are predicted")
        if spec is None:
            return
        if (spec.mode == "threshold") != (spec.thresholds is not None and spec.average_macs is not None):
            raise ValueError("thresholds and average_macs go with mode threshold, and it needs them")
        if spec.mode == "threshold" and self.removed != "drop":
            raise ValueError("with a threshold, removed patches are dropped")
        if spec.thresholds is not None:
            self._check_depth(len(spec.thresholds))
            if not all(math.isfinite(threshold) for threshold in spec.thresholds):
                raise ValueError("a threshold is not a finite number")

    @property
    def counts(self) -> tuple[int, ...]:
        """Patches kept per block, block 1 first (for mode threshold: about the average)."""
        if self.patches_per_block is not None:
            return tuple(self.patches_per_block)
        return tuple(len(kept) for kept in self.kept)

    @property
    def per_image(self) -> bool:
        """Whether every image chooses its own patches."""
        return self.select != "static"

    @property
    def groups(self) -> Groups | None:
        """Of a static plan that merges: own where each image decides which patch a removed one joins, else fixed."""
        if self.per_image or self.removed != "merge":
            return None
        return "own" if self.into is None else "fixed"

    @property
    def varies(self) -> bool:
        """Whether tokens stand for other patches in one image than in another."""
        return self.per_image or self.groups == "own"

    @property
    def mode(self) -> Mode:
        """threshold where images keep different numbers of patches, else top-k."""
        return "top-k" if self.predictor is None else self.predictor.mode

    def by_keys(self) -> SlimPlan:
        """The same plan with patches matched by their keys, which needs no weights beside the host's."""
        return self.model_copy(update={"distance": None})

    @property
    def choosing(self) -> list[int]:
        """The blocks (from 1) of a plan that varies which choose among the patches that come in, or group them."""
        above = (self.host.patches, *self.counts)
        layers = [layer for layer, count in enumerate(self.counts, start=1) if 0 < count < above[layer - 1]]
        # Where the head reads patches, all images have to end with equally many.
        ends_alike = self.mode == "threshold" and self.counts[-1] > 0 and self.host.depth not in layers
        return [*layers, self.host.depth] if ends_alike else layers

    def merges(self, block: int) -> bool:
        """Whether block `block` (from 1) merges what it removes. The last one has nothing to merge into at count 0."""
        return self.removed == "merge" and block not in self.drops and self.counts[block - 1] > 0

    def in_pairs(self, block: int) -> bool:
        """Whether block `block` (from 1) removes one patch of a pair, so that at least half of them stay."""
        return self.select == "matched" or (self.select == "predicted" and self.merges(block))

    def _stays(self) -> list[int]:
        """How many blocks compute each patch of a static plan."""
        stays = [0] * self.host.patches
        for kept in self.kept:
            for patch in kept:
                stays[patch] += 1
        return stays

    @property
    def order(self) -> list[int]:
        """All patches, those that stay longest first: each block's kept set is a prefix of this list."""
        stays = self._stays()
        return sorted(range(self.host.patches), key=lambda patch: (-stays[patch], patch))

    def check_fits(self, info: HostInfo) -> None:
        """Raise PlanError unless the plan was made for a model of this name and shape."""
        there = HostShape.of(info)
        for field in HostShape.model_fields:
            planned, actual = getattr(self.host, field), getattr(there, field)
            if planned != actual:
                raise PlanError(
                    f"This plan was made for {self.host.name} ({field} {planned}) and does not fit "
                    f"{info.name} ({field} {actual}); make a plan for this model with `patchslim slim`."
                )

    def to_json(self) -> str:
        """The plan as JSON, one line per block of a static plan, the same bytes for the same plan."""
        optional = ("patches_per_block", "drops", "predictor", "distance", "into")
        unused = {name for name in optional if not getattr(self, name)}
        text = json.dumps(self.model_dump(exclude=unused | {"kept"}), indent=2)
        if not self.per_image:
            lines = ",\n    ".join(json.dumps(block) for block in self.kept)
            text = text.removesuffix("\n}") + f',\n  "kept": [\n    {lines}\n  ]\n}}'
        return text + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        write_text(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> SlimPlan:
        """Read a plan back; PlanError says what is wrong with the file."""
        data = read_json(Path(path), PlanError, "plan")
        version = data.get("version")
        if isinstance(version, int) and version > PLAN_VERSION:
            raise PlanError(
                f"{path} is a plan of version {version}, this patchslim reads up to {PLAN_VERSION}; upgrade patchslim."
            )
        if "version" not in data:
            raise PlanError(f"{path} is not a patchslim plan: it has no version.")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise PlanError(f"{path} is not a valid plan: {explain(error)}.") from None


def explain(error: ValidationError) -> str:
    """The first complaint of a pydantic error as one phrase."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}"
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def make_plan(
    info: HostInfo, kept: list[list[int]], removed: Removed = "drop", provenance: dict[str, Any] | None = None
) -> SlimPlan:
    """A static plan for a host from patch lists in any order; PlanError when they do not make one."""
    return build_plan(info, removed=removed, kept=[sorted(block) for block in kept], provenance=provenance or {})


def build_plan(info: HostInfo, **fields: Any) -> SlimPlan:
    """A plan of any kind for a host; PlanError when the fields do not make one."""
    try:
        return SlimPlan(host=HostShape.of(info), **fields)
    except ValidationError as error:
        raise PlanError(f"These patches do not make a plan: {explain(error)}.") from None
