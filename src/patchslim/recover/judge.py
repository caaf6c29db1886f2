"""How close a slim model is to the network it was made from, on held-out images."""

from __future__ import annotations

from typing import Any

import torch

from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.distill import Distillation, divergence
from patchslim.recover.outputs import outputs, tracking
from patchslim.recover.parts import Parts
from patchslim.slim.model import counting, keeps_alike


@torch.no_grad()
def measure(student: Host, distillation: Distillation, parts: Parts, config: RecoverConfig) -> dict[str, Any]:
    """The distillation loss, KL(teacher‖student) in nats whatever the temperature of the loss, and in percent how often
    both networks agree on the first class (the last two are None without classes).

    Where images keep different numbers of patches, also the mean MACs: they change with what G reads.
    """
    model: Any = student.model
    device, packed = next(model.parameters()).device, not keeps_alike(model)
    loss, kl, agree, count = 0.0, 0.0, 0, 0
    with counting(model) if packed else tracking(student, distillation.layer is not None) as counts:
        for batch, _ in parts.held_out_batches():
            images = batch.to(device)
            with config.autocast(device):
                own, taught = outputs(student, images, distillation.layer), distillation.taught(images)
                loss += float(distillation.compare(own, taught)) * len(images)
            kl += float(divergence(taught.logits, own.logits, 1.0)) * len(images)
            agree += int((own.logits.argmax(dim=-1) == taught.logits.argmax(dim=-1)).sum())
            count += len(images)
    found: dict[str, Any] = {"loss": loss / count, "kl": None, "agreement": None}
    if student.info.classes:
        found |= {"kl": kl / count, "agreement": 100 * agree / count}
    return found | ({"macs": round(float(counts.macs().double().mean()))} if counts is not None else {})


def learnt(outcome: dict[str, Any]) -> bool:
    """Whether a stage found anything better than what it began with."""
    return bool(outcome.get("best_epoch") or outcome.get("kept"))
