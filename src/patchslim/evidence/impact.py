"""The paper's impact score (Theorem 1, Eq. 6), exactly, without enumerating the H^(L-t) paths of heads.

Every summand of Eq. 6 is rank one, so its norm is a product: the column A_t^h[:, i] of the path part times the row
U_t^h[i, :] of the patch's own part. Summed over all paths, the column norms are the diagonal of one second moment M_t
that obeys a recursion. Shapes: B images, H heads, n tokens computed by a block, n_in tokens it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from torch import Tensor


def propagate(moment: Tensor, attention: Tensor) -> Tensor:
    """One step down, M_{t-1} = Σ_h P_t^hᵀ M_t P_t^h / H; the 1/H only holds the range, it ranks nothing anew.

    moment (B, n, n), attention P_t (B, H, n, n_in) → (B, n_in, n_in).
    """
    heads = attention.shape[1]
    weighted = (moment.unsqueeze(1) @ attention).flatten(1, 2)  # (B, H·n, n_in)
    return attention.flatten(1, 2).transpose(1, 2) @ weighted / heads


def path_moment(attentions: Iterable[Tensor], readout: Tensor, masks: Iterable[Tensor] | None = None) -> Tensor:
    """M_t from the readout's M_L = R and the maps of the blocks above t, the last block's first.

    Each map P (B, H, n, n_in) has the rows of the kept tokens, which come first; readout (B, n, n). Where kept tokens
    do not come first, give full maps and `masks` in the same order, boolean (n,) per block: D = diag(m). Maps are taken
    one at a time, so a generator need never hold two. Returns (B, n_in, n_in) over the tokens that leave block t.
    """
    moment = readout
    kept = itertools.repeat(None) if masks is None else iter(masks)
    for attention, mask in zip(attentions, kept, strict=False):
        n = attention.shape[2]
        moment = moment[:, :n, :n]  # D_t M_t D_t on sorted tokens
        if mask is not None:
            moment = moment * mask.to(moment)[:, None] * mask.to(moment)
        moment = propagate(moment, attention)
    return moment


def own_energy(attention: Tensor, inputs: Tensor) -> Tensor:
    """Σ_h ‖U_t^h[i, :]‖² with U_t^h = P_t^h |Z_{t-1}|: (B, H, n, n_in) and (B, n_in, d) → (B, n)."""
    return (attention @ inputs.abs().unsqueeze(1)).square().sum(dim=(1, 3))


def impact(path: Tensor, attention: Tensor, inputs: Tensor) -> Tensor:
    """s_{t,i} of Eq. 6, up to H^(L-t): diag M_t (B, n), P_t (B, H, n, n_in), Z_{t-1} (B, n_in, d) → (B, n)."""
    return path * own_energy(attention, inputs)
