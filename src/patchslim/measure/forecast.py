"""What a plan that was made for a speed-up says of it, and whether a measurement is of the same thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchslim.plan import SPEED, SlimPlan


class Forecast(BaseModel):
    """The speed-up that a plan predicts, and for what: the part of its provenance that `bench` has a use for."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    asked: float = Field(gt=1, allow_inf_nan=False)
    predicted: float = Field(gt=0, allow_inf_nan=False)
    device: str
    batch_size: int = Field(ge=1)
    dtype: str
    modes: list[str] = Field(min_length=1)

    def holds_for(self, row: Mapping[str, Any], device: str, modes: Sequence[str]) -> bool:
        """Whether a row of a benchmark on this device measures what was predicted."""
        asked = self.device, self.batch_size, self.dtype, set(self.modes), False
        return asked == (device, row["batch_size"], row["dtype"], set(modes), row["autocast"])


def forecast(plan: SlimPlan) -> Forecast | None:
    """A plan's own prediction; None where it was not made for a speed-up, or what it says of one can't be read."""
    try:
        return Forecast.model_validate(plan.provenance.get(SPEED))
    except ValidationError:
        return None
