"""Distillation: the slim model learns to say what the original network says of the same view. No labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.plan import SlimPlan
from patchslim.recover.config import RecoverConfig
from patchslim.recover.outputs import Outputs, outputs
from patchslim.recover.rows import Rows


class Distillation:
    """KL(teacher‖student)·T², plus relative errors of what the head reads and, where asked for, of deep patches."""

    name = "distillation"
    labels = False

    def __init__(self, teacher: Host, plan: SlimPlan | None, config: RecoverConfig) -> None:
        """Without a plan nobody knows what a patch token stands for, so patches are not compared."""
        self.teacher, self.plan, self.config = teacher, plan, config
        self.rows = None if plan is None else Rows(plan)
        self.layer = _deepest(plan) if plan is not None and config.patch_weight else None

    def loss(self, student: Host, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch on the student's device: (B, C, H, W) → ()."""
        return self.compare(self.says(student, images), self.taught(images))

    held_out_loss = loss

    def says(self, student: Host, images: Tensor) -> Outputs:
        """What the student says; its patches know what they stand for where they are compared."""
        return outputs(student, images, self.layer, tracks=self.layer is not None)

    @torch.no_grad()
    def taught(self, images: Tensor) -> Outputs:
        """What the teacher says."""
        return outputs(self.teacher, images, self.layer)

    def compare(self, own: Outputs, taught: Outputs) -> Tensor:
        """The loss between two networks' outputs."""
        config = self.config
        loss = own.features.new_zeros((), dtype=torch.float32)
        if self.teacher.info.classes:
            loss = loss + divergence(taught.logits, own.logits, config.temperature)
        # A network without a head has nothing else to be compared by.
        weight = config.feature_weight or (0.0 if self.teacher.info.classes else 1.0)
        if weight:
            loss = loss + weight * relative_error(own.features.float(), taught.features.float()).mean()
        if self.layer is not None and self.rows is not None:
            computed, reference = self.rows.pair(self.layer, own.inner, taught.inner)
            loss = loss + config.patch_weight * relative_error(computed, reference).mean()
        return loss


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(teacher‖student)·T² in nats, the mean over images: twice (B, classes) → ()."""
    target = F.log_softmax(teacher.float() / temperature, dim=-1)
    found = F.log_softmax(student.float() / temperature, dim=-1)
    return F.kl_div(found, target, reduction="batchmean", log_target=True) * temperature**2


def _deepest(plan: SlimPlan) -> int | None:
    """The deepest block before the last one that computes patches; what the last one gives, the head reads."""
    return max((layer for layer, count in enumerate(plan.counts[:-1], start=1) if count), default=None)
