"""How alike the patches of a block are: the paper's figure of similarity by depth.

The paper does not say of which features. Three are measured: a block's output; what attention adds to its input, MSA
in Eq. 1; and what the heads of attention mix, before the projection W^o.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.paper.figures.work import Work
from patchslim.hosts import Host
from patchslim.kernels.attention import plain
from patchslim.measure.accuracy import spread

Found = dict[tuple[str, int], Tensor]  # (features, block) → (images,)


def patch_similarity(patches: Tensor) -> Tensor:
    """The mean cosine of all pairs of different patches: (B, N, d) → (B,) in float64.

    With unit vectors u_i it is (‖Σ u_i‖² − N) / (N (N − 1)), so no N×N matrix is needed.
    """
    count = patches.shape[1]
    total = F.normalize(patches.double(), dim=2).sum(dim=1).square().sum(dim=1)
    return (total - count) / (count * (count - 1))


@torch.inference_mode()
def by_block(host: Host, images: Tensor) -> Found:
    """Of every block, block 0 being the embedding: (B, C, H, W) → (B,) each. Prefix tokens have no part."""
    prefix, x = host.info.prefix_tokens, host.embed(images)
    found = {("block output", 0): patch_similarity(x[:, prefix:])}
    for number, block in enumerate(host.blocks, start=1):
        mixed, added = attention_parts(host, block, x)
        x = block(x, None)
        for name, features in (("block output", x), ("attention output", added), ("attention heads", mixed)):
            found[name, number] = patch_similarity(features[:, prefix:])
    return found


def attention_parts(host: Host, block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the heads mix, side by side, and what attention adds to its input.

    x (B, n, d) → (B, n, H · d_h), (B, n, d).
    """
    mixed: list[Tensor] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        out = plain(q, k, v, **options)
        mixed.append(out.transpose(1, 2).flatten(2))
        return out

    added = host.math.attend(block, x, watched) - x
    return mixed[0], added


def measure_sim(work: Work) -> None:
    """A row for each kind of features and block, in one pass."""
    source = work.val or work.images
    if source is None:
        return
    parts = [by_block(work.host, pixels.to(work.device)) for pixels, _ in source.batches(work.batch_size)]
    rows = []
    for of, block in sorted(parts[0]):
        own = torch.cat([part[of, block] for part in parts]).cpu()
        point = {"of": of, "block": block}
        rows.append(work.row("sim", point=point, values=spread(own), val_images=len(own)))
    work.keep(rows)
