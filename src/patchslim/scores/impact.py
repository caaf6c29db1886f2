"""The paper's impact score (Theorem 1, Eq. 6), exactly, without enumerating the H^(L-t) paths of heads.

Every summand of Eq. 6 is rank one, so its norm is a product: the column A_t^h[:, i] of the path part times the row
U_t^h[i, :] of the patch's own part. Summed over all paths, the column norms are the diagonal of one second moment M_t
that obeys a recursion. Shapes: B images, H heads, n tokens computed by a block, n_in tokens it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def propagate(moment: Tensor, attention: Tensor) -> Tensor:
    """One step down, M_{t-1} = Σ_h P_t^hᵀ M_t P_t^h / H; the 1/H only holds the range, it ranks nothing anew.

    moment (B, n, n), attention P_t (B, H, n, n_in) → (B, n_in, n_in).
    """
    heads = attention.shape[1]
    weighted = (moment.unsqueeze(1) @ attention).flatten(1, 2)  # (B, H·n, n_in)
    return attention.flatten(1, 2).transpose(1, 2) @ weighted / heads


def path_moment(attentions: Sequence[Tensor], readout: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
    """M_t from the maps of the blocks above t, first to last, and the readout's M_L = R.

    attentions[k] (B, H, n, n_in) holds the rows of the kept tokens, which come first; readout (B, n, n).
    Where kept tokens do not come first, give full maps and `masks`, boolean (n,) per block: D = diag(m).
    Returns (B, n_in, n_in) over the tokens that leave block t.
    """
    moment = readout
    for index in reversed(range(len(attentions))):
        attention = attentions[index]
        n = attention.shape[2]
        moment = moment[:, :n, :n]  # D_t M_t D_t on sorted tokens
        if masks is not None:
            kept = masks[index].to(moment)
            moment = moment * kept[:, None] * kept
        moment = propagate(moment, attention)
    return moment


def own_energy(attention: Tensor, inputs: Tensor) -> Tensor:
    """Σ_h ‖U_t^h[i, :]‖² with U_t^h = P_t^h |Z_{t-1}|: (B, H, n, n_in) and (B, n_in, d) → (B, n)."""
    return (attention @ inputs.abs().unsqueeze(1)).square().sum(dim=(1, 3))


def impact(moment: Tensor, attention: Tensor, inputs: Tensor) -> Tensor:
    """s_{t,i} of Eq. 6, up to H^(L-t): M_t (B, n, n), P_t (B, H, n, n_in), Z_{t-1} (B, n_in, d) → (B, n)."""
    return moment.diagonal(dim1=1, dim2=2) * own_energy(attention, inputs)
