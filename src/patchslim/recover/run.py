"""A whole recovery: from a slim model, the network it was made from and images, to the slim model with its accuracy
back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.events import Listener, silent
from patchslim.hosts.weights import weights_fingerprint
from patchslim.recover.checkpoint import Checkpoints, host_fingerprint, plan_fingerprint
from patchslim.recover.checks import check_slim, open_teacher, training_source
from patchslim.recover.config import RecoverConfig
from patchslim.recover.stages import Made, Recovered, Recovery


def finetune(
    slim: Made,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = silent,
) -> Made:
    """A slim model with its accuracy back, learnt from the network it was made from. Both are left as they were.

    No labels are needed unless `config.supervised_epochs` asks for them. Given a `checkpoint` folder, every epoch is
    kept there, and a recovery that finds one goes on from it. It runs on the slim model's device.
    """
    return recover(slim, teacher, images, config, checkpoint=checkpoint, listen=listen).model


@torch.enable_grad()  # whatever the caller has switched off
def recover(
    slim: Made,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = silent,
) -> Recovered[Made]:
    """The same, with the report that a run folder keeps."""
    info = check_slim(slim)
    source = training_source(images, info)
    config = config or RecoverConfig()
    host = open_teacher(teacher, slim, info)
    started = {
        "settings": config.as_dict(),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        "plan": plan_fingerprint(slim),
        "weights": host_fingerprint(slim),
        "teacher": weights_fingerprint(host.model),
    }
    folder = None if checkpoint is None else Path(checkpoint)
    return Recovery(slim, host, source, config, Checkpoints(folder, started), listen).run()
