"""How close a slim model is to the network it was made from, on held-out images."""

from __future__ import annotations

from typing import Any

import torch

from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.distill import Distillation, divergence
from patchslim.recover.parts import Parts
from patchslim.slim import image_macs, plan_of


@torch.no_grad()
def measure(student: Host, distillation: Distillation, parts: Parts, config: RecoverConfig) -> dict[str, Any]:
    """The distillation loss, KL(teacher‖student) in nats whatever the temperature of the loss, and in percent how often
    both networks agree on the first class (the last two are None without classes).

    Where images keep different numbers of patches, also the mean MACs: they change with what G reads.
    """
    plan, device = plan_of(student.model), next(student.model.parameters()).device
    packed = plan is not None and not plan.rectangular
    loss, kl, agree, macs, count = 0.0, 0.0, 0, 0.0, 0
    for batch, _ in parts.held_out_batches():
        images = batch.to(device)
        with config.autocast(device):
            own, taught = distillation.says(student, images), distillation.taught(images)
            loss += float(distillation.compare(own, taught)) * len(images)
            macs += float(image_macs(student.model, images).double().sum()) if packed else 0.0
        kl += float(divergence(taught.logits, own.logits, 1.0)) * len(images)
        agree += int((own.logits.argmax(dim=-1) == taught.logits.argmax(dim=-1)).sum())
        count += len(images)
    found: dict[str, Any] = {"loss": loss / count, "kl": None, "agreement": None}
    if student.info.classes:
        found |= {"kl": kl / count, "agreement": 100 * agree / count}
    return found | ({"macs": round(macs / count)} if packed else {})


def learnt(outcome: dict[str, Any]) -> bool:
    """Whether a stage found anything better than what it began with."""
    return bool(outcome.get("best_epoch") or outcome.get("kept"))
