"""SlimPlan: one step per block, and for static steps the order in which patches stay. Plain data, kept as JSON."""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from patchslim.errors import PlanError
from patchslim.files import explain, read_json, write_text
from patchslim.hosts.base import PATCH_READOUTS, HostInfo
from patchslim.steps import Step, read_step
from patchslim.steps.carry import Carry
from patchslim.steps.keep import Keep
from patchslim.steps.slice import Slice

PLAN_VERSION = 5
SPEED = "speed"  # in `provenance`: what a plan that was made for a speed-up predicts
HOST = "host_weights"  # likewise: the fingerprint of the weights that the plan was made for
BY_HAND = "by hand"  # the method of a plan that no method made

Static = Literal["slice", "carry"]
AnyStep = Annotated[SerializeAsAny[Step], BeforeValidator(read_step)]


class HostShape(BaseModel):
    """What a plan has to know of the model it was made for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    depth: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=2**20)
    heads: int = Field(ge=1, le=2**20)
    prefix_tokens: int = Field(ge=0, le=2**20)
    patches: int = Field(ge=1, le=2**20)
    grid: list[int] = Field(min_length=2, max_length=2)
    readout: str

    @classmethod
    def of(cls, info: HostInfo) -> Self:
        """The part of a host's description that a plan depends on."""
        fields = {name: getattr(info, name) for name in cls.model_fields if name != "grid"}
        return cls(**fields, grid=list(info.grid))


class SlimPlan(BaseModel):
    """One step per block, first block first.

    `order` lists all patches, those that stay longest first: a static step computes a prefix of it. Patches are
    numbered row by row; prefix tokens are not counted and always computed. `method` is a label. `weights` is the
    fingerprint of what the steps own, empty where they own nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ignored_types=(cached_property,))

    version: int = PLAN_VERSION
    host: HostShape
    method: str = BY_HAND
    weights: str = ""
    average_macs: int | None = Field(default=None, ge=0)  # over the images of the search, where images differ
    provenance: dict[str, Any] = Field(default_factory=dict)
    order: list[int] | None = None
    steps: list[AnyStep]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.version != PLAN_VERSION:
            raise ValueError(f"its version is {self.version}, not {PLAN_VERSION}")
        if len(self.steps) != self.host.depth:
            raise ValueError(f"it has {len(self.steps)} steps where the model has {self.host.depth} blocks")
        if self.order is not None and sorted(self.order) != list(range(self.host.patches)):
            raise ValueError(f"the order does not name each patch from 0 to {self.host.patches - 1} once")
        self._check_steps()
        if self.host.readout in PATCH_READOUTS and not self.counts[-1]:
            raise ValueError(f"the {self.host.readout} readout needs at least one patch in the last block")
        return self

    def _check_steps(self) -> None:
        """Every step can be done on what the ones before it leave."""
        least = most = self.host.patches
        chose = merged = lost = 0  # the first block after which patches are in another order, stand for several, or
        # sit nobody knows where
        for block, (entering, step) in enumerate(zip(self.entering, self.steps, strict=True), start=1):
            try:
                step.check(entering)
            except ValueError as error:
                raise ValueError(f"block {block} {error}") from None
            kept = step.kept(entering)
            if step.ordered and 0 < kept < entering and self.order is None:
                raise ValueError(f"block {block} takes patches in an order, and the plan has none")
            if step.ordered and kept and chose:
                raise ValueError(f"block {block} takes patches in the plan's order, but block {chose} chose others")
            if not self.rectangular and not step.packs:
                raise ValueError(f"block {block} keeps a fixed number where others keep what they need")
            if merged and not step.takes_sizes:
                raise ValueError(f"block {block} takes no token that stands for several patches; block {merged} merged")
            if lost and step.tracks:
                raise ValueError(f"block {block} asks where patches sit, and after block {lost} nobody knows")
            if not step.ordered and (step.per_image or step.leaving(entering) < entering):
                chose = chose or block
            merged = merged or block * step.sizes
            lost = lost or block * (not step.placed)
            least, most = step.bounds(least, most)
        if least != most:  # the head is given one tensor
            raise ValueError(
                "images end with different numbers of patches; "
                "let the last block keep none, or a number without `above`"
            )

    @property
    def entering(self) -> list[int]:
        """Patches that enter each block (for thresholds: about the average)."""
        counts = [self.host.patches]
        for step in self.steps:
            counts.append(step.leaving(counts[-1]))
        return counts[:-1]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Patches that each block computes, block 1 first (for thresholds: about the average)."""
        return tuple(step.kept(entering) for step, entering in zip(self.steps, self.entering, strict=True))

    @property
    def leaving(self) -> int:
        """Patches that the head sees."""
        return self.steps[-1].leaving(self.entering[-1])

    @property
    def per_image(self) -> bool:
        """Whether tokens stand for other patches in one image than in another."""
        return any(step.per_image for step in self.steps)

    @property
    def rectangular(self) -> bool:
        """Whether all images keep equally many patches, so that a batch stays one tensor."""
        return all(step.rectangular for step in self.steps)

    @property
    def exact(self) -> bool:
        """Whether it is known patch by patch what a token stands for."""
        return all(step.exact for step in self.steps)

    @property
    def kept(self) -> list[list[int]]:
        """The patches of every block in ascending order, where they are the same for all images."""
        order = list(range(self.host.patches)) if self.order is None else self.order
        return [sorted(order[:count]) for count in self.counts]

    @property
    def choosing(self) -> list[int]:
        """The blocks (from 1) that leave patches out."""
        blocks = enumerate(zip(self.entering, self.counts, strict=True), start=1)
        return [layer for layer, (entering, count) in blocks if 0 < count < entering]

    def check_fits(self, info: HostInfo) -> None:
        """Raise PlanError unless the plan was made for a model of this name and shape."""
        for field, actual in HostShape.of(info):
            planned = getattr(self.host, field)
            if planned != actual:
                raise PlanError(
                    f"This plan was made for {self.host.name} ({field} {planned}) and does not fit "
                    f"{info.name} ({field} {actual}); make a plan for this model with `patchslim slim`."
                )

    def with_(self, **changes: Any) -> Self:
        """The plan with some fields changed, checked anew."""
        return type(self)(**{name: getattr(self, name) for name in SlimPlan.model_fields} | changes)

    def to_json(self) -> str:
        """The plan as JSON, one line per block, the same bytes for the same plan."""
        data = self.model_dump(exclude={"steps", "order"}, exclude_none=True)
        lines = [json.dumps(step.model_dump(exclude_none=True)) for step in self.steps]
        text = json.dumps(data, indent=2).removesuffix("\n}")
        if self.order is not None:
            text += f',\n  "order": {json.dumps(self.order)}'
        return text + ',\n  "steps": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        write_text(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan back; PlanError says what is wrong with the file."""
        data = read_json(Path(path), PlanError, "plan")
        if "version" not in data:
            raise PlanError(f"{path} is not a patchslim plan: it has no version.")
        version = data["version"]
        if version != PLAN_VERSION:
            newer = isinstance(version, int) and version > PLAN_VERSION
            what = "upgrade patchslim" if newer else "make the plan anew with `patchslim slim`"
            raise PlanError(f"{path} is a plan of version {version}, this patchslim reads {PLAN_VERSION}; {what}.")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise PlanError(f"{path} is not a valid plan: {explain(error)}.") from None


def make_plan(info: HostInfo, steps: Sequence[Step], order: Sequence[int] | None = None, **fields: Any) -> SlimPlan:
    """A plan for a host; PlanError when the steps do not make one."""
    found = None if order is None else list(order)
    try:
        return SlimPlan(host=HostShape.of(info), steps=list(steps), order=found, **fields)
    except ValidationError as error:
        raise PlanError(f"These steps do not make a plan: {explain(error)}.") from None


def static_plan(info: HostInfo, kept: Sequence[Sequence[int]], step: Static = "slice", **fields: Any) -> SlimPlan:
    """A plan from the patches of each block, every list a part of the one before; PlanError when they are not."""
    order = order_of(kept, info.patches)
    return make_plan(info, static_steps(info, [len(block) for block in kept], step), order, **fields)


def static_steps(info: HostInfo, counts: Sequence[int], step: Static) -> list[Step]:
    """Static steps that keep so many patches in each block."""
    if step == "carry":
        return [Carry(n=count) for count in counts]
    return steps_by(info, lambda n, drop: Slice(n=n))(counts, ())


def steps_by(info: HostInfo, make: Callable[[int, bool], Step]) -> Callable[[Sequence[int], Sequence[int]], list[Step]]:
    """From patches per block, and the blocks (from 1) that drop them, to steps: `make(n, whether it drops)` where some
    patches go and others stay, a slice where only the prefix is left."""

    def steps(counts: Sequence[int], drops: Sequence[int]) -> list[Step]:
        found = list[Step]()
        for layer, (entering, n) in enumerate(pairwise((info.patches, *counts)), start=1):
            if n == entering:
                found.append(Keep())
            else:
                found.append(make(n, layer in drops) if n else Slice(n=0))
        return found

    return steps


def order_of(kept: Sequence[Sequence[int]], patches: int) -> list[int]:
    """All patches, those that stay longest first; PlanError unless the lists are nested."""
    outer, stays = set(range(patches)), [0] * patches
    for block, own in enumerate(kept, start=1):
        if len(set(own)) < len(own):
            raise PlanError(f"These steps do not make a plan: the patches of block {block} repeat.")
        if not set(own) <= outer:
            patch = min(set(own) - outer)
            why = f"block {block} keeps patch {patch}, an earlier one does not"
            if not 0 <= patch < patches:
                why = f"block {block} keeps patch {patch}, but patches are 0 to {patches - 1}"
            raise PlanError(f"These steps do not make a plan: {why}.")
        for patch in own:
            stays[patch] += 1
        outer = set(own)
    return sorted(range(patches), key=lambda patch: (-stays[patch], patch))
