"""What a recovery minimises: what the original network says of the same view, and, where there are labels, the DeiT
recipe with LV-ViT's token labels. And how close both networks are."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import Mixup
from timm.layers import DropPath
from torch import Tensor, nn

from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.plan import SlimPlan
from patchslim.recover.config import RecoverConfig
from patchslim.recover.images import Parts
from patchslim.recover.networks import Outputs, outputs, pair_rows
from patchslim.slimmed import State, image_macs, plan_of
from patchslim.steps.packed import Packed


class Distillation:
    """KL(teacher‖student)·T², plus relative errors of what the head reads and, where asked for, of deep patches."""

    name = "distillation"
    labels = False

    def __init__(self, teacher: Host, plan: SlimPlan | None, config: RecoverConfig) -> None:
        """Without a plan nobody knows what a patch token stands for, so patches are not compared."""
        self.teacher, self.plan, self.config = teacher, plan, config
        # The deepest block before the last one that computes patches; what the last one gives, the head reads.
        counts = plan.counts[:-1] if plan is not None and config.patch_weight else []
        self.layer = max((layer for layer, count in enumerate(counts, start=1) if count), default=None)

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
        if self.plan is not None and self.layer is not None:
            computed, reference = pair_rows(self.plan, self.layer, own.inner, taught.inner)
            loss = loss + config.patch_weight * relative_error(computed, reference).mean()
        return loss


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(teacher‖student)·T² in nats, the mean over images: twice (B, classes) → ()."""
    target = F.log_softmax(teacher.float() / temperature, dim=-1)
    found = F.log_softmax(student.float() / temperature, dim=-1)
    return F.kl_div(found, target, reduction="batchmean", log_target=True) * temperature**2


@torch.no_grad()
def measure(student: Host, distillation: Distillation, parts: Parts, config: RecoverConfig) -> dict[str, Any]:
    """The distillation loss on held-out images, KL(teacher‖student) in nats whatever the temperature of the loss, and
    in percent how often both networks agree on the first class (the last two are None without classes).

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


class Supervised:
    """Soft-target cross entropy on mixed images; beside it token labels and, where asked for, the distillation loss."""

    name = "supervised"
    labels = True

    def __init__(self, classes: int, config: RecoverConfig, distillation: Distillation) -> None:
        self.config, self.distillation = config, distillation
        self.mixup: Any = None
        if config.mixup or config.cutmix:
            self.mixup = Mixup(config.mixup, config.cutmix, label_smoothing=config.smoothing, num_classes=classes)
        teacher, plan = distillation.teacher, distillation.plan
        self.tokens: TokenLabels | None = None
        if config.token_weight and plan is not None and has_token_labels(teacher, plan):
            self.tokens = TokenLabels(teacher, plan)

    def loss(self, student: Host, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch: (B, C, H, W), (B,) → ()."""
        targets, smoothing, even = labels, self.config.smoothing, len(images) // 2 * 2
        if self.mixup is not None and even:
            images, targets = self.mixup(images[:even], labels[:even])  # in pairs
            smoothing = 0.0  # they have it
        logits, beside = self._answers(student, images)
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
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


def has_token_labels(host: Host, plan: SlimPlan) -> bool:
    """Whether the network has a head on its patches and the plan leaves some for it to read."""
    return host.has_patch_head and plan.counts[-1] > 0


class TokenLabels:
    """Token labels (LV-ViT): every patch that is left learns, by soft cross entropy of the auxiliary head, what the
    original network says of it. A merged patch has the mean label of its members."""

    def __init__(self, teacher: Host, plan: SlimPlan) -> None:
        self.teacher, self.plan = teacher, plan
        self.prefix = plan.host.prefix_tokens

    def answers(self, student: Host, images: Tensor) -> tuple[Tensor, Tensor]:
        """The student's logits (B, classes), and the loss of its patches ()."""
        own = outputs(student, images, student.info.depth, tracks=True)
        # Patches that are carried along come after those that the last block computes: (B, p + n, d).
        found = student.patch_logits(own.inner.tensor()[:, : self.prefix + self.plan.counts[-1]])
        loss = -(self._labels(images, own.inner) * F.log_softmax(found.float(), dim=-1)).sum(dim=-1).mean()
        return own.logits, loss

    @torch.no_grad()
    def _labels(self, images: Tensor, state: State) -> Tensor:
        """What the teacher says of the patches that are left: (B, n, classes), rows that sum to 1."""
        z = outputs(self.teacher, images, self.teacher.info.depth).inner
        every = self.teacher.patch_logits(z).float().softmax(dim=-1)
        whole = F.pad(every, (0, 0, self.prefix, 0))  # as many rows as there are tokens
        _, labels = pair_rows(self.plan, self.plan.host.depth, state, whole)
        if isinstance(state, Packed):  # in the last block all images keep alike
            labels = labels.reshape(len(images), -1, labels.shape[-1])
        return labels[:, self.prefix :]
