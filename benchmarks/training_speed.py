"""How fast a step of `finetune` is on slim tokens, over the same step of the host: whole, and the student's part alone.

Promised is what the MACs say, a step backwards being two forwards: with the host as teacher a step is 1 + 3 forwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.drawn import drawn_model
from benchmarks.inputs import MODEL, Macs, Methods, ModelName, Out, Sized, Where, network, noise, read_methods
from benchmarks.rows import RESULTS, Row, about, keep
from benchmarks.speed import about_model
from benchmarks.table import COLUMNS, method_of, number, pages, place, value
from patchslim.data import tensor_images
from patchslim.hosts import Host, HostInfo
from patchslim.macs import host_macs
from patchslim.recover import RecoverConfig
from patchslim.recover.images import split, views_for
from patchslim.recover.losses import Distillation
from patchslim.recover.networks import Outputs, open_student, open_teacher
from patchslim.recover.train import Training
from patchslim.slimmed import plan_of
from patchslim.timing import in_turns

FORWARDS = {"whole": (1, 3), "student": (0, 3)}  # of the teacher and of the student, in a step


class Taught(Distillation):
    """The same, of a teacher that is asked once: what is left is the student's part of a step."""

    known: Outputs | None = None

    def taught(self, images: Tensor) -> Outputs:
        """What the teacher said of the first batch."""
        if self.known is None:
            self.known = super().taught(images)
        return self.known


PARTS = {"whole": Distillation, "student": Taught}


def training_speed(
    model: ModelName = MODEL,
    methods: Methods = "merge,cover,drop",
    target_macs: Macs = 0.57,
    batch_size: int = 128,
    seconds: Annotated[float, typer.Option("--seconds", help="For each model and part.")] = 3.0,
    img_size: Sized = None,
    device: Where = None,
    out: Out = RESULTS,
) -> None:
    """Time steps of host and slim models in turns, forward, backward and optimiser, on one batch of noise."""
    host, info, place_ = network(model, None, img_size, device)
    models: dict[str, nn.Module] = {"host": host}
    known: dict[str, dict[str, Any]] = {"host": {"method": "host", "macs": host_macs(info), "macs_ratio": 1.0}}
    for chosen in read_methods(methods):
        models[str(chosen)] = drawn_model(host, chosen, target_macs)
        known[str(chosen)] = about_model(models[str(chosen)], chosen, target_macs, info)
    config = RecoverConfig(batch_size=batch_size)
    steps = {(part, name): step_of(own, host, info, part, config) for part in PARTS for name, own in models.items()}
    times = dict(zip(steps, in_turns([*steps.values()], place_, seconds), strict=True))
    dtype = "bfloat16" if place_.type == "cuda" else "float32"
    head = about(place_) | {"question": "training-speed", "model": model, "image_size": info.image_size[0]}
    head |= {"batch_size": batch_size, "dtype": dtype}
    rows = []
    for (part, name), timing in times.items():
        gained = times[part, "host"].median / timing.median
        promised = promised_by(part, known[name]["macs_ratio"])
        rows.append(
            Row(
                **head,
                **known[name],
                point={"part": part},
                images_per_second=round(batch_size / timing.median, 1),
                speedup=round(gained, 4),
                values={"promised": round(promised, 4), "share": round(gained / promised, 4)},
            )
        )
    keep(rows, out)
    print(pages("training-speed", rows))


def promised_by(part: str, ratio: float) -> float:
    """How many times as fast a step should be by its MACs."""
    teacher, student = FORWARDS[part]
    return (teacher + student) / (teacher + student * ratio)


def step_of(model: nn.Module, host: nn.Module, info: HostInfo, part: str, config: RecoverConfig) -> Callable[[], Any]:
    """One step of distillation of a model by its host, as `finetune` takes it."""
    device = next(host.parameters()).device
    student: Host = open_student(model)
    objective = PARTS[part](open_teacher(host, model, info), plan_of(model), config)
    images = noise(info, config.batch_size, torch.device("cpu"))
    source = tensor_images(torch.cat([images, images[:1]]))  # one is held out
    parts = split(source, config.held_out, config.seed, config.batch_size, device)
    training = Training(
        student, objective, parts, views_for(student, source, config, False), config, 1, lambda event: None
    )
    batch = images.to(device)
    return partial(training._step_, batch, torch.zeros(len(batch), dtype=torch.long, device=device))


COLUMNS["training-speed"] = {
    "method": method_of,
    "part": place("part"),
    "batch": number("batch_size", "d"),
    "dtype": number("dtype", ""),
    "MACs": number("macs_ratio", ".3f"),
    "images/s": number("images_per_second", ",.0f"),
    "× host": number("speedup", ".2f"),
    "promised": value("promised", ".2f"),
    "share": value("share", ".0%"),
}
