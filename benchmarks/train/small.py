"""A small T2T-ViT or LV-ViT from scratch on labelled shards, in a few minutes of a GPU: something real to slim.

All pictures have one size; labels stay as they are. The folder gets model.safetensors (the moving average),
training.tar and held_out.tar (the pictures, split), and metrics.json. From there:

    cd small/t2t
    patchslim slim t2t_vit_7 --img-size 128 --checkpoint model.safetensors --data training.tar --out run
    patchslim finetune run --data training.tar --val held_out.tar
    patchslim eval run t2t_vit_7 --img-size 128 --checkpoint model.safetensors --data held_out.tar
"""

from __future__ import annotations

import math
import random
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import torch.nn.functional as F
import typer
from braceexpand import braceexpand
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn

import patchslim as ps
from benchmarks.inputs import Where, say
from patchslim.cli.opening import open_device, workers_for
from patchslim.data.transform import data_config
from patchslim.files import write_json
from patchslim.hosts.weights import write_weights
from patchslim.measure import evaluate
from patchslim.models import LVViT
from patchslim.timing import device_name

TRAINING, HELD_OUT = "training.tar", "held_out.tar"
PER_PATCH = 0.5  # weight of LV-ViT's auxiliary head
TICKS = 10_000  # of the learning rate's schedule, from start to end
CROP = 0.25  # smallest share of the picture that a view shows
WEIGHT_DECAY, DROP_PATH = 0.05, 0.1


@dataclass(frozen=True)
class Course:
    """How long and how fast a network learns."""

    minutes: float
    epochs: int | None  # instead of minutes
    batch_size: int
    learning_rate: float

    def gone(self, start: float, steps: int, per_epoch: int) -> float:
        """Share of the way: by the clock, or by epochs."""
        if self.epochs is None:
            return (time.monotonic() - start) / (60 * self.minutes)
        return steps / (per_epoch * self.epochs)


def small(
    data: Annotated[str, typer.Option("--data", help="Shards with labels.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the network and its images.")],
    model: Annotated[str, typer.Option("--model")] = "t2t_vit_7",
    img_size: Annotated[int, typer.Option("--img-size")] = 128,
    classes: int = 1000,
    minutes: float = 5.0,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Instead of minutes.")] = None,
    images: Annotated[int | None, typer.Option("--images", help="Train on a sample of this many.")] = None,
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the images.")] = 0.125,
    batch_size: int = 512,
    learning_rate: float = 1e-3,
    seed: int = 0,
    device: Where = None,
) -> None:
    """Train a small T2T-ViT or LV-ViT from scratch; split, train, write, measure."""
    torch.manual_seed(seed)
    place = open_device(device)
    split_shards(data, out, held_out, seed)
    settings = {"img_size": img_size, "num_classes": classes, "drop_path_rate": DROP_PATH}
    network = timm.create_model(model, **settings).to(place)
    pixels, labels = read_pixels(out / TRAINING, images, place)
    trained, known = train(network, pixels, labels, Course(minutes, epochs, batch_size, learning_rate))
    write_weights(out / "model.safetensors", trained.state_dict())
    judges = ps.open_images(out / HELD_OUT, model=trained, workers=workers_for(place))
    found: dict[str, Any] = {"model": model, "img_size": img_size, "images": len(pixels), "device": device_name(place)}
    found |= known | {"held_out": asdict(evaluate(trained, judges, 256)), "torch": torch.__version__}
    write_json(out / "metrics.json", found)
    score = found["held_out"]
    print(f"{out}: held-out top-1 {score['top1']:.2f} % of {score['images']}, after {known['seconds']} s")


def split_shards(pattern: str, folder: Path, share: float, seed: int) -> None:
    """Write two tars: a seeded share of all samples is held out, the rest is to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / TRAINING, "w") as training, tarfile.open(folder / HELD_OUT, "w") as held_out:
        for number, path in enumerate(sorted(braceexpand(pattern))):
            with tarfile.open(path, "r:") as shard:
                samples: dict[str, list[tarfile.TarInfo]] = defaultdict(list)
                for member in filter(tarfile.TarInfo.isreg, shard):
                    samples[member.name.partition(".")[0]].append(member)
                keys = sorted(samples)
                random.Random(seed + number).shuffle(keys)
                for place, key in enumerate(keys):
                    for member in samples[key]:
                        content = shard.extractfile(member)
                        member.name = f"{number:04d}-{member.name.replace('/', '-')}"
                        (held_out if place < share * len(keys) else training).addfile(member, content)


def read_pixels(path: Path, limit: int | None, place: torch.device) -> tuple[Tensor, Tensor]:
    """All pictures at once: bytes (K, 3, H, W) and labels (K,)."""
    source = ps.open_images(path, limit=limit, workers=workers_for(place))
    labelled = source.subset([index for index, label in enumerate(source.labels) if label >= 0])
    batches = list(labelled.batches(500))
    pixels = torch.cat([(images * 255).round().byte() for images, _ in batches])
    return pixels.to(place), torch.cat([labels for _, labels in batches]).to(place)


def views(pixels: Tensor, size: int, least: float) -> Tensor:
    """A random crop of every picture, mirrored half the time: bytes (B, 3, H, W) → floats from 0 to 1 (B, 3, S, S)."""
    count, place = len(pixels), pixels.device
    area = torch.empty(count, device=place).uniform_(least, 1).sqrt()
    ratio = torch.empty(count, device=place).uniform_(math.log(3 / 4), math.log(4 / 3)).exp().sqrt()
    width, height = (area * ratio).clamp_max(1), (area / ratio).clamp_max(1)
    theta = torch.zeros(count, 2, 3, device=place)
    theta[:, 0, 0] = width * (torch.randint(0, 2, (count,), device=place) * 2 - 1)
    theta[:, 1, 1] = height
    theta[:, 0, 2], theta[:, 1, 2] = (
        (torch.rand(count, device=place) * 2 - 1) * (1 - side) for side in (width, height)
    )
    grid = F.affine_grid(theta, [count, 3, size, size], align_corners=False)
    return F.grid_sample(pixels.float() / 255, grid, align_corners=False, padding_mode="border")


def loss_of(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Soft cross entropy; LV-ViT's auxiliary head learns the image's label on every patch."""
    soft: Callable[[Tensor, Tensor], Tensor] = SoftTargetCrossEntropy()
    if not isinstance(model, LVViT):
        return soft(model(images).float(), targets)
    own, patches = model.forward_heads(model.forward_features(images))
    every = targets[:, None].expand(-1, patches.shape[1], -1).flatten(0, 1)
    return soft(own.float(), targets) + PER_PATCH * soft(patches.flatten(0, 1).float(), every)


def train(model: Any, pixels: Tensor, labels: Tensor, course: Course) -> tuple[nn.Module, dict[str, Any]]:
    """AdamW, warm-up and cosine over the course, mixup and cutmix, bf16 on a GPU; the moving average."""
    place, config = pixels.device, data_config(model)
    mean, std = (torch.tensor(config[name], device=place).view(-1, 1, 1) for name in ("mean", "std"))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=course.learning_rate, weight_decay=WEIGHT_DECAY)
    warmup = {"warmup_t": TICKS // 20, "warmup_prefix": True}
    schedule = CosineLRScheduler(optimizer, t_initial=TICKS, t_in_epochs=False, **warmup)
    mixup = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=model.num_classes)
    average = ModelEmaV3(model, decay=0.999, use_warmup=True)
    batch = min(course.batch_size, len(pixels)) // 2 * 2  # mixup takes pairs
    size, per_epoch = config["input_size"][-1], len(pixels) // batch
    steps, epoch, start = 0, 0, time.monotonic()
    model.train()
    while course.gone(start, steps, per_epoch) < 1:
        total = torch.zeros((), device=place)
        for index in torch.randperm(len(pixels), device=place)[: per_epoch * batch].split(batch):
            if (gone := course.gone(start, steps, per_epoch)) >= 1:  # the clock does not wait for the end of an epoch
                break
            schedule.step_update(min(TICKS, round(TICKS * gone)))
            images, targets = mixup((views(pixels[index], size, CROP) - mean) / std, labels[index])
            with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
                loss = loss_of(model, images, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            average.update(model, steps)
            total += loss.detach()
        epoch += 1
        say(f"epoch {epoch}, {100 * course.gone(start, steps, per_epoch):.0f} %: loss {float(total) / per_epoch:.3f}")
    seconds = round(time.monotonic() - start, 1)
    return average.module.eval(), {"epochs": epoch, "steps": steps, "seconds": seconds}
