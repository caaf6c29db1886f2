"""A whole recovery: from a slim model, the network it was made from and images, to the slim model with its accuracy
back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from patchslim.data import ImageSource
from patchslim.hosts.weights import weights_fingerprint
from patchslim.recover.checkpoint import Keeper
from patchslim.recover.checks import check_slim, open_teacher, training_source
from patchslim.recover.config import RecoverConfig
from patchslim.recover.stages import Recovered, Recovery
from patchslim.search.topdown import Listener
from patchslim.slim import SlimModel


def finetune(
    slim: nn.Module,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = lambda event: None,
) -> SlimModel:
    """A slim model with its accuracy back, learnt from the network it was made from. Both are left as they were.

    No labels are needed unless `config.supervised_epochs` asks for them. Given a `checkpoint` folder, every epoch is
    kept there, and a recovery that finds one goes on from it. It runs on the slim model's device.
    """
    return recover(slim, teacher, images, config, checkpoint=checkpoint, listen=listen).model


@torch.enable_grad()  # whatever the caller has switched off
def recover(
    slim: nn.Module,
    teacher: nn.Module,
    images: ImageSource | Tensor,
    config: RecoverConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
    listen: Listener = lambda event: None,
) -> Recovered:
    """The same, with the report that a run folder keeps."""
    model = check_slim(slim)
    source = training_source(images, model.host_info)
    config = config or RecoverConfig()
    host = open_teacher(teacher, model)
    started = {
        "settings": config.as_dict(),
        "images": {"count": len(source), "fingerprint": source.fingerprint},
        "weights": weights_fingerprint(model),
        "teacher": weights_fingerprint(host.model),
    }
    folder = None if checkpoint is None else Path(checkpoint)
    return Recovery(model, host, source, config, Keeper(folder, started), listen).run()
