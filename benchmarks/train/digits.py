"""The bundled digits ViT: about ten minutes on two cores, no GPU needed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import timm
import torch
import torch.nn.functional as F
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.inputs import in_memory, say
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS
from patchslim.measure import evaluate


def digits(
    out: Annotated[Path, typer.Option("--out", help="The weights.")] = DIGITS_WEIGHTS,
    epochs: int = 60,
    batch_size: int = 64,
    limit: Annotated[int | None, typer.Option("--limit", help="Train on a sample.")] = None,
) -> None:
    """Train the bundled digits model from scratch, measure it on held-out digits, write its weights."""
    torch.manual_seed(0)
    model = timm.create_model("digits_vit", drop_path_rate=0.05)
    source = in_memory("digits:train", model, limit)
    images, labels = next(source.batches(len(source)))
    train(model, images, labels, epochs, batch_size)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out)
    print(f"{out}: held-out top-1 {evaluate(model, in_memory('digits:test', model)).top1:.2f} %")


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, scale, shear and move every image a little, each in its own way."""
    count = len(images)

    def spread(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle, scale, shear = spread(math.radians(15)), 1 + spread(0.15), spread(0.15)
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 0, 1] = angle.cos() * scale, -angle.sin() * scale + shear
    theta[:, 1, 0], theta[:, 1, 1] = angle.sin() * scale, angle.cos() * scale
    theta[:, 0, 2], theta[:, 1, 2] = spread(0.15), spread(0.15)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    # -1 is black after normalisation: shift so that what comes in from outside is black too.
    return F.grid_sample(images + 1, grid, align_corners=False) - 1


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, batch_size: int) -> None:
    """AdamW, one cycle of the learning rate, label smoothing; in eval mode afterwards."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    steps = len(images) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=epochs * steps, pct_start=0.1)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(images), generator=generator)[: steps * batch_size].split(batch_size):
            logits = model(augment(images[index], generator))
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        say(f"epoch {epoch + 1} of {epochs}: loss {total / steps:.3f}")
    model.eval()
