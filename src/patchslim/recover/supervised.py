"""Fine-tuning with labels: the DeiT recipe, from timm's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm.data import Mixup
from timm.layers import DropPath
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.distill import Distillation
from patchslim.recover.outputs import outputs
from patchslim.recover.token_labels import TokenLabels, has_token_labels


class Supervised:
    """Soft-target cross entropy on mixed images, and the distillation loss beside it where asked for."""

    name = "supervised"
    labels = True

    def __init__(self, classes: int, config: RecoverConfig, distillation: Distillation) -> None:
        self.config, self.distillation = config, distillation
        self.mixup: Any = None
        if config.mixup or config.cutmix:
            self.mixup = Mixup(config.mixup, config.cutmix, label_smoothing=config.smoothing, num_classes=classes)
        self.soft: Any = SoftTargetCrossEntropy()
        teacher, plan, rows = distillation.teacher, distillation.plan, distillation.rows
        self.tokens: TokenLabels | None = None
        if config.token_weight and plan is not None and rows is not None and has_token_labels(teacher, plan):
            self.tokens = TokenLabels(teacher, plan, rows)

    def loss(self, student: Host, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch: (B, C, H, W), (B,) → ()."""
        even = len(images) // 2 * 2  # images are mixed in pairs
        if self.mixup is None or not even:
            logits, beside = self._answers(student, images)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.config.smoothing)
        else:
            images, targets = self.mixup(images[:even], labels[:even])
            logits, beside = self._answers(student, images)
            loss = self.soft(logits.float(), targets)
        return loss + beside + self._distilled(student, images, labels)

    def _answers(self, student: Host, images: Tensor) -> tuple[Tensor, Tensor | float]:
        """Logits (B, classes), and the loss of token labels ()."""
        if self.tokens is None:
            return outputs(student, images).logits, 0.0
        logits, loss = self.tokens.answers(student, images)
        return logits, self.config.token_weight * loss

    def held_out_loss(self, student: Host, images: Tensor, labels: Tensor) -> Tensor:
        """Plain cross entropy of unmixed images: (B, C, H, W), (B,) → ()."""
        loss = F.cross_entropy(outputs(student, images).logits.float(), labels)
        return loss + self._distilled(student, images, labels)

    def _distilled(self, student: Host, images: Tensor, labels: Tensor) -> Tensor | float:
        weight = self.config.distill_weight
        return weight * self.distillation.loss(student, images, labels) if weight else 0.0


def set_drop_path_(blocks: Sequence[nn.Module], rate: float) -> None:
    """Stochastic depth that grows linearly from block to block, as timm sets it."""
    for index, block in enumerate(blocks):
        own = rate * index / max(1, len(blocks) - 1)
        for name in ("drop_path1", "drop_path2"):
            if hasattr(block, name) and own:
                setattr(block, name, DropPath(own).eval())
