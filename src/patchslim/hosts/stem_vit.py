"""T2T-ViT and LV-ViT as hosts: timm's blocks behind a stem of their own. The stem is counted, never slimmed."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchslim.errors import UnsupportedModel
from patchslim.hosts.base import HostInfo
from patchslim.hosts.parts import like_weights
from patchslim.hosts.shells import host_parameters
from patchslim.hosts.timm_vit import TimmViT, check_blocks
from patchslim.models import LVViT, T2TViT
from patchslim.models.lv_vit import AUXILIARY
from patchslim.models.stem_vit import linear_macs


class StemHost(TimmViT):
    """A T2T-ViT or an LV-ViT seen as a patchslim host: stem and head are its own."""

    @property
    def embedding(self) -> nn.Module:
        """What makes the patches."""
        return self.model.stem

    @staticmethod
    def check(model: nn.Module) -> None:
        """Raise UnsupportedModel for a class that changes either, and for changed blocks."""
        if type(model) not in (T2TViT, LVViT):
            raise UnsupportedModel(
                f"{type(model).__name__} can't be slimmed: it changes {type(model).__mro__[1].__name__}."
            )
        check_blocks(model)

    def described(self) -> HostInfo:
        """The description of a host, or of the host a slim model was made from."""
        model = self.model
        reads_all = getattr(model, "readout", "class") == "class+auxiliary"
        return self._info(
            model.stem,
            family=type(model).__name__,
            readout="class+auxiliary" if reads_all else "class",
            parameters=host_parameters(model, model.blocks) + sum(table.numel() for table in model.fixed()),
            embed_macs=model.stem.macs(),
            head_macs=linear_macs(model.head),
            head_macs_per_token=linear_macs(model.aux_head) if reads_all else 0,
        )

    def embed(self, images: Tensor) -> Tensor:
        """Z_0: images (B, C, H, W) → (B, 1 + N, d)."""
        return self.model.embed(like_weights(self.model, images))

    def features(self, tokens: Tensor, weight: Tensor | None = None) -> Tensor:
        """What the output is made of: the class feature (B, d); where the auxiliary head is read, the logits, for its
        maximum takes another patch for every class: (B, n, d) → (B, classes). `weight` (B, n) as in `expected_max`."""
        if self.info.readout == "class":
            return self.model.forward_head(self.model.norm(tokens), pre_logits=True)
        if weight is None:
            return self.logits(tokens)
        own, patches = self.model.forward_heads(self.model.norm(tokens))
        return own + AUXILIARY * expected_max(patches, weight[:, 1:])

    @property
    def has_patch_head(self) -> bool:
        """Whether there is an auxiliary head."""
        return isinstance(self.model, LVViT)

    def patch_logits(self, tokens: Tensor) -> Tensor:
        """What the auxiliary head says of every patch: (B, 1 + n, d) → (B, n, classes)."""
        return self.model.forward_heads(self.model.norm(tokens))[1]

    def readout_moment(self, tokens: Tensor) -> Tensor:
        """R of the impact recursion: (B, n, d) → (B, n, n). Where the auxiliary head is read, a patch adds the head's
        weight squared times the share of classes whose maximum it is."""
        moment = super().readout_moment(tokens)
        if self.info.readout == "class":
            return moment
        patches = self.patch_logits(tokens)
        best = torch.zeros_like(patches).scatter(1, patches.argmax(dim=1, keepdim=True), 1.0)
        return moment + torch.diag_embed(F.pad(AUXILIARY**2 * best.mean(dim=2).float(), (1, 0)))


def expected_max(values: Tensor, weight: Tensor) -> Tensor:
    """The mean of the largest value when patch i is there with probability weight_i: (B, n, C), (B, n) → (B, C).

    With weights of 0 and 1 that is the maximum over the patches that are there; the derivative in a weight is what the
    patch's absence would change. Where none may be there, the smallest value counts.
    """
    ranked, order = values.sort(dim=1, descending=True)
    there = weight.to(values.dtype)[:, :, None].expand_as(values).gather(1, order)
    there = torch.cat([there[:, :-1], torch.ones_like(there[:, :1])], dim=1)
    missed = torch.cat([torch.ones_like(there[:, :1]), (1 - there[:, :-1]).cumprod(dim=1)], dim=1)
    return (ranked * there * missed).sum(dim=1)
