"""How close a slim model is to the network it was made from, on held-out images."""

from __future__ import annotations

from typing import Any

import torch

from patchslim.hosts import Host
from patchslim.recover.config import RecoverConfig
from patchslim.recover.distill import Distillation
from patchslim.recover.outputs import outputs, tracking
from patchslim.recover.parts import Parts


@torch.no_grad()
def measure(student: Host, distillation: Distillation, parts: Parts, config: RecoverConfig) -> dict[str, Any]:
    """The distillation loss, and in percent how often both networks agree on the first class (None without classes)."""
    device = next(student.model.parameters()).device
    loss, agree, count = 0.0, 0, 0
    for batch, _ in parts.held_out_batches():
        images = batch.to(device)
        with config.autocast(device), tracking(student, distillation.layer is not None):
            own, taught = outputs(student, images, distillation.layer), distillation.taught(images)
            loss += float(distillation.compare(own, taught)) * len(images)
        agree += int((own.logits.argmax(dim=-1) == taught.logits.argmax(dim=-1)).sum())
        count += len(images)
    return {"loss": loss / count, "agreement": 100 * agree / count if student.info.classes else None}


def learnt(outcome: dict[str, Any]) -> bool:
    """Whether a stage found anything better than what it began with."""
    return bool(outcome.get("best_epoch") or outcome.get("kept"))
