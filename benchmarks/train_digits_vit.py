"""Trains the bundled digits ViT and writes its weights: about ten minutes on two cores, no GPU needed.

python benchmarks/train_digits_vit.py --out src/patchslim/assets/digits_vit.safetensors
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import patchslim as ps
import patchslim.hosts.digits_vit


def load_digits(model: nn.Module, split: str) -> tuple[Tensor, Tensor]:
    """All digits of a split as the model sees them: (K, 3, 32, 32) and labels (K,)."""
    batches = list(ps.open_images(f"digits:{split}", model=model).batches(256))
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


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
    """AdamW, cosine schedule, label smoothing."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    steps = epochs * (len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(images), generator=generator).split(batch_size):
            if len(index) < batch_size:
                continue
            logits = model(augment(images[index], generator))
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}/{epochs}: loss {total / (len(images) // batch_size):.3f}", flush=True)
    model.eval()


@torch.inference_mode()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 in percent."""
    return float((model(images).argmax(1) == labels).float().mean() * 100)


def main() -> None:
    """Train, measure on the held-out digits, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model("digits_vit", drop_path_rate=0.05)
    images, labels = load_digits(model, "train")
    train(model, images, labels, args.epochs, args.batch_size)
    print(f"held-out top-1: {accuracy(model, *load_digits(model, 'test')):.2f} %")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
