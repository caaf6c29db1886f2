"""What a run's JSON files may say, beside the plan's and the manifest's own schemas. More is let through; what
patchslim reads has to be what it says it is."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT, RUN_VERSION = "patchslim run", 2
Number = Annotated[float, Field(allow_inf_nan=False)]


class Open(BaseModel):
    """Keys beside those named are somebody's own."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Recovered(Open):
    """What a recovery went by, and whether it learnt anything."""

    changed: bool = True
    settings: dict[str, Any] = Field(default_factory=dict)
    images: dict[str, Any] = Field(default_factory=dict)


class Config(Open):
    """`config.json`. What the host's settings may say, `patchslim.hosts.spec` says."""

    format: Literal["patchslim run"]
    version: int
    host: dict[str, Any]
    versions: dict[str, str] = Field(default_factory=dict)
    weights: str | None = None
    recovery: Recovered | None = None


class Judged(Open):
    """Accuracy on labelled images."""

    top1: Number | None = None


class Sides(Open):
    """Before a recovery and after."""

    before: Judged | None = None
    after: Judged | None = None


class Report(Open):
    """What `finetune` found."""

    val: Sides | None = None


class Speed(Open):
    """Throughput, as `bench` and the demo measure it."""

    throughput: Number = 0.0
    speedup: Number = 0.0


class Metrics(Speed):
    """`metrics.json`."""

    top1: Number | None = None
    macs: Number = 0.0
    macs_ratio: Number = 0.0
    host_macs: Number = 0.0
    seconds: Number = 0.0
    skipped_images: int = 0
    expected_speedup: Number | None = None
    recovery: Report | None = None
