"""Trains a small T2T-ViT or LV-ViT from scratch on labelled shards, in a few minutes of a GPU: something real to slim.

python benchmarks/train_small_vits.py --model t2t_vit_7 --data tiny.tar --img-size 128 --minutes 5 --out small/t2t
python benchmarks/train_small_vits.py --model lvvit_t --data tiny.tar --img-size 128 --minutes 5 --out small/lv

All pictures have one size; labels stay as they are. OUT gets model.safetensors (the moving average), training.tar and
held_out.tar (the pictures, split), and metrics.json with top-1 of the held-out ones. From there:

cd small/t2t
patchslim slim t2t_vit_7 --img-size 128 --checkpoint model.safetensors --data training.tar --target-macs 0.6 --out run
patchslim finetune run --data training.tar --val held_out.tar
patchslim eval run t2t_vit_7 --img-size 128 --checkpoint model.safetensors --data held_out.tar
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from braceexpand import braceexpand
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn

import patchslim as ps
from patchslim.data.transform import data_config
from patchslim.hosts.weights import write_weights
from patchslim.measure import device_name, evaluate
from patchslim.models import LVViT

TRAINING, HELD_OUT = "training.tar", "held_out.tar"
PER_PATCH = 0.5  # weight of LV-ViT's auxiliary head
TICKS = 10_000  # of the learning rate's schedule, from start to end


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


def read_pixels(path: Path, limit: int | None, workers: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All pictures at once: bytes (K, 3, H, W) and labels (K,)."""
    source = ps.open_images(path, limit=limit, workers=workers)
    labelled = source.subset([index for index, label in enumerate(source.labels) if label >= 0])
    batches = list(labelled.batches(500))
    pixels = torch.cat([(images * 255).round().byte() for images, _ in batches])
    return pixels.to(device), torch.cat([labels for _, labels in batches]).to(device)


def views(pixels: Tensor, size: int, least: float) -> Tensor:
    """A random crop of every picture, mirrored half the time: bytes (B, 3, H, W) → floats from 0 to 1 (B, 3, S, S)."""
    count, device = len(pixels), pixels.device
    area = torch.empty(count, device=device).uniform_(least, 1).sqrt()
    ratio = torch.empty(count, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp().sqrt()
    width, height = (area * ratio).clamp_max(1), (area / ratio).clamp_max(1)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0] = width * (torch.randint(0, 2, (count,), device=device) * 2 - 1)
    theta[:, 1, 1] = height
    theta[:, 0, 2], theta[:, 1, 2] = (
        (torch.rand(count, device=device) * 2 - 1) * (1 - side) for side in (width, height)
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


def train(model: Any, pixels: Tensor, labels: Tensor, args: argparse.Namespace) -> tuple[nn.Module, dict[str, Any]]:
    """AdamW, warm-up and cosine over the minutes or epochs asked for, mixup and cutmix, bf16 on a GPU; the average."""
    device, config = pixels.device, data_config(model)
    mean, std = (torch.tensor(config[name], device=device).view(-1, 1, 1) for name in ("mean", "std"))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=args.learning_rate, weight_decay=0.05)
    schedule = CosineLRScheduler(
        optimizer, t_initial=TICKS, warmup_t=TICKS // 20, warmup_prefix=True, t_in_epochs=False
    )
    mixup = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=model.num_classes)
    average = ModelEmaV3(model, decay=0.999, use_warmup=True)
    size, steps, epoch, start = config["input_size"][-1], 0, 0, time.monotonic()
    batch_size = min(args.batch_size, len(pixels)) // 2 * 2
    model.train()

    def progress() -> float:
        """Share of the way: by the clock, or by epochs."""
        if args.epochs is None:
            return float((time.monotonic() - start) / (60 * args.minutes))
        return float(steps / (len(pixels) // batch_size * args.epochs))

    while progress() < 1:
        total = torch.zeros((), device=device)
        batches = [
            part for part in torch.randperm(len(pixels), device=device).split(batch_size) if len(part) == batch_size
        ]
        for index in batches:
            if progress() >= 1:  # the clock does not wait for the end of an epoch
                break
            schedule.step_update(min(TICKS, round(TICKS * progress())))
            images, targets = mixup((views(pixels[index], size, args.crop_scale) - mean) / std, labels[index])
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = loss_of(model, images, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            average.update(model, steps)
            total += loss.detach()
        epoch += 1
        print(f"epoch {epoch}, {100 * progress():.0f} %: loss {float(total) / len(batches):.3f}", flush=True)
    seconds = time.monotonic() - start
    return average.module.eval(), {"epochs": epoch, "steps": steps, "seconds": round(seconds, 1)}


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="t2t_vit_7")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--img-size", type=int, default=128)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, help="instead of minutes")
    parser.add_argument("--images", type=int, help="train on a sample of this many")
    parser.add_argument("--held-out", type=float, default=0.125)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--drop-path", type=float, default=0.1)
    parser.add_argument("--crop-scale", type=float, default=0.25)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Split, train, write, measure."""
    args = options()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    split_shards(args.data, args.out, args.held_out, args.seed)
    model = timm.create_model(
        args.model, img_size=args.img_size, num_classes=args.classes, drop_path_rate=args.drop_path
    ).to(device)
    pixels, labels = read_pixels(args.out / TRAINING, args.images, args.workers, device)
    trained, about = train(model, pixels, labels, args)
    write_weights(args.out / "model.safetensors", trained.state_dict())
    images = ps.open_images(args.out / HELD_OUT, model=trained, workers=args.workers)
    found = {"model": args.model, "img_size": args.img_size, "images": len(pixels), "device": device_name(device)}
    found |= about | {"held_out": asdict(evaluate(trained, images, 256)), "torch": torch.__version__}
    (args.out / "metrics.json").write_text(json.dumps(found, indent=2) + "\n")
    print(
        f"held-out top-1 {found['held_out']['top1']:.2f} % of {found['held_out']['images']}, after {about['seconds']} s"
    )


if __name__ == "__main__":
    main()
