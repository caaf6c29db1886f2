"""How alike the patches of a block are: the paper's figure of similarity by depth."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from figures.rows import Rows
from figures.work import Work
from patchslim.hosts import Host
from patchslim.measure.accuracy import spread

KEY = ("block",)


def patch_similarity(patches: Tensor) -> Tensor:
    """The mean cosine of all pairs of different patches: (B, N, d) → (B,) in float64.

    With unit vectors u_i it is (‖Σ u_i‖² − N) / (N (N − 1)), so no N×N matrix is needed.
    """
    count = patches.shape[1]
    total = F.normalize(patches.double(), dim=2).sum(dim=1).square().sum(dim=1)
    return (total - count) / (count * (count - 1))


@torch.inference_mode()
def by_block(host: Host, images: Tensor) -> Tensor:
    """Of the embedding and of every block's output: (B, C, H, W) → (B, 1 + depth). Prefix tokens have no part."""
    prefix, x = host.info.prefix_tokens, host.embed(images)
    found = [patch_similarity(x[:, prefix:])]
    for block in host.blocks:
        x = block(x, None)
        found.append(patch_similarity(x[:, prefix:]))
    return torch.stack(found, dim=1)


def measure_sim(work: Work, rows: Rows) -> None:
    """A row for the embedding (block 0) and one for every block, in one pass."""
    source = work.val or work.images
    if source is None or len(rows.rows) > work.host.info.depth:
        return
    batches = (pixels.to(work.device) for pixels, _ in source.batches(work.batch_size))
    found = torch.cat([by_block(work.host, pixels).cpu() for pixels in batches])
    rows.add(*({"block": block, "images": len(found)} | spread(own) for block, own in enumerate(found.unbind(dim=1))))
