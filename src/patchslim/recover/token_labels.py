"""Token labels (LV-ViT) for a slim network: every patch that is left learns what the original network says of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from patchslim.hosts import Host
from patchslim.hosts.base import PatchHead
from patchslim.plan import SlimPlan
from patchslim.recover.outputs import outputs
from patchslim.recover.rows import Rows
from patchslim.slim import State
from patchslim.steps.packed import Packed


def has_token_labels(host: Host, plan: SlimPlan) -> bool:
    """Whether the network has a head on its patches and the plan leaves some for it to read."""
    return isinstance(host, PatchHead) and host.has_patch_head and plan.counts[-1] > 0


class TokenLabels:
    """Soft cross entropy of the auxiliary head on kept patches. A merged patch has the mean label of its members."""

    def __init__(self, teacher: Host, plan: SlimPlan, rows: Rows) -> None:
        self.teacher, self.plan, self.rows = teacher, plan, rows
        self.prefix = plan.host.prefix_tokens

    def answers(self, student: Host, images: Tensor) -> tuple[Tensor, Tensor]:
        """The student's logits (B, classes), and the loss of its patches ()."""
        own = outputs(student, images, student.info.depth, tracks=True)
        found = _patch_logits(student, self._computed(own.inner))
        loss = -(self._labels(images, own.inner) * F.log_softmax(found.float(), dim=-1)).sum(dim=-1).mean()
        return own.logits, loss

    @torch.no_grad()
    def _labels(self, images: Tensor, state: State) -> Tensor:
        """What the teacher says of the patches that are left: (B, n, classes), rows that sum to 1."""
        z = outputs(self.teacher, images, self.teacher.info.depth).inner
        every = _patch_logits(self.teacher, z).float().softmax(dim=-1)
        whole = F.pad(every, (0, 0, self.prefix, 0))  # as many rows as there are tokens
        _, labels = self.rows.pair(self.plan.host.depth, state, whole)
        if isinstance(state, Packed):  # in the last block all images keep alike
            labels = labels.reshape(len(images), -1, labels.shape[-1])
        return labels[:, self.prefix :]

    def _computed(self, state: State) -> Tensor:
        """The tokens that the last block computes: (B, p + n, d); patches that are carried along come after them."""
        return state.tensor()[:, : self.prefix + self.plan.counts[-1]]


def _patch_logits(host: Host, tokens: Tensor) -> Tensor:
    assert isinstance(host, PatchHead)
    return host.patch_logits(tokens)
