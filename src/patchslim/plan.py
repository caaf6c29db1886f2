"""SlimPlan: which patches each block computes, and for which model. Plain data, checked, kept as versioned JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from patchslim.errors import PlanError
from patchslim.files import read_json, write_text
from patchslim.hosts.base import HostInfo

PLAN_VERSION = 1
Select = Literal["static"]
Removed = Literal["drop", "carry"]


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


class SlimPlan(BaseModel):
    """Kept patches per block (the paper's masks m_1 … m_L), what becomes of removed ones, and how it came about.

    `kept[l - 1]` lists, in ascending order, the patches block `l` computes; patches are numbered 0 … N-1 row by
    row, prefix tokens are not counted and always computed. Later blocks keep a subset of earlier ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = PLAN_VERSION
    host: HostShape
    select: Select = "static"
    removed: Removed = "drop"
    kept: list[list[int]]
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.version != PLAN_VERSION:
            raise ValueError(f"plan version {self.version} is not {PLAN_VERSION}")
        if len(self.kept) != self.host.depth:
            raise ValueError(f"it has {len(self.kept)} blocks where the model has {self.host.depth}")
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
        if self.host.readout in ("mean", "attention-pool") and not self.kept[-1]:
            raise ValueError(f"the {self.host.readout} readout needs at least one patch in the last block")
        return self

    @property
    def counts(self) -> tuple[int, ...]:
        """Patches kept per block, block 1 first."""
        return tuple(len(kept) for kept in self.kept)

    @property
    def order(self) -> list[int]:
        """All patches, those that stay longest first: each block's kept set is a prefix of this list."""
        leaves = [0] * self.host.patches
        for kept in self.kept:
            for patch in kept:
                leaves[patch] += 1
        return sorted(range(self.host.patches), key=lambda patch: (-leaves[patch], patch))

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
        """The plan as JSON, one line per block, the same bytes for the same plan."""
        fields = self.model_dump()
        kept = ",\n    ".join(json.dumps(block) for block in fields.pop("kept"))
        rest = json.dumps(fields, indent=2)
        return rest.removesuffix("\n}") + f',\n  "kept": [\n    {kept}\n  ]\n}}\n'

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
    """A plan for a host from patch lists in any order; PlanError when they do not make one."""
    try:
        return SlimPlan(
            host=HostShape.of(info),
            removed=removed,
            kept=[sorted(block) for block in kept],
            provenance=provenance or {},
        )
    except ValidationError as error:
        raise PlanError(f"These kept patches do not make a plan: {explain(error)}.") from None
