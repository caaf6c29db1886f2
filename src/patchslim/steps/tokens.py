"""What passes from one slim block to the next where a plain tensor is not enough."""

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from patchslim.errors import PlanError
from patchslim.kernels.attention import Mix, plain, sized
from patchslim.kernels.match import take
from patchslim.kernels.merge import Merged

NO_TENSOR = "A slim model has no features of single blocks: some tokens are gone; ask the host for them."
NOBODY = -1  # the owner of a patch that no token stands for


class Tokens(NamedTuple):
    """Tokens of a rectangular batch: prefix first, then n patches.

    `owner` and `place` are there only where somebody asks for them; what is computed is the same without.
    """

    x: Tensor  # (B, p + n, d)
    size: Tensor | None = None  # (B or 1, p + n): input patches that each token stands for; None: one each
    owner: Tensor | None = None  # (B, N): which of the n patch tokens stands for each input patch, or NOBODY
    place: Tensor | None = None  # (B, n): the input patch at which each patch token sits
    log_size: Tensor | None = None  # (B, p + n, 16): what attention reads of the sizes, where it came for nothing
    normed: Tensor | None = None  # (B, p + n, d): LN1 of x in this block, likewise

    @classmethod
    def __torch_function__(cls, *args: Any, **options: Any) -> NoReturn:
        """Raise PlanError where they are taken for one tensor, as by whoever asks for a block's features."""
        raise PlanError(NO_TENSOR)

    def __getitem__(self, index: Any) -> Any:
        """A field by its number, as of any tuple; PlanError where rows and columns are asked for."""
        if isinstance(index, tuple):
            raise PlanError(NO_TENSOR)
        return tuple.__getitem__(self, index)

    def mix(self, kept: "Tokens") -> Mix:
        """Attention of some kept tokens to these: a token that stands for s patches counts s times."""
        return plain if self.size is None else sized(self.size, self.log_size)

    def counts(self, prefix: int) -> list[int]:
        """Patch tokens of each image."""
        return [self.x.shape[1] - prefix] * self.x.shape[0]

    def rows(self, prefix: int) -> Tensor:
        """Which input patches each patch token stands for: (B, n, N) boolean."""
        assert self.owner is not None
        token = torch.arange(self.x.shape[1] - prefix, device=self.x.device)
        return self.owner[:, None, :] == token[:, None]

    def tensor(self) -> Tensor:
        """What leaves the last block: (B, p + n, d)."""
        return self.x


def start(x: Tensor, prefix: int, order: Tensor | None = None) -> Tokens:
    """Tokens that know where they come from: x (B, p + N, d), after `order` (p + N,) was applied to it."""
    patches = torch.arange(x.shape[1] - prefix, device=x.device)
    owner = patches if order is None else (order[prefix:] - prefix).argsort()
    place = patches if order is None else order[prefix:] - prefix
    return Tokens(x, owner=owner.expand(x.shape[0], -1), place=place.expand(x.shape[0], -1))


def moved(owner: Tensor, to: Tensor) -> Tensor:
    """Owners after tokens went to other places: owner (B, N), to (B, t) places or NOBODY → (B, N)."""
    nowhere = torch.full_like(to[:, :1], NOBODY)
    return torch.cat([to, nowhere], dim=1).gather(1, torch.where(owner < 0, to.shape[1], owner)).to(owner.dtype)


def places(keep: Tensor, t: int, others: int = NOBODY) -> Tensor:
    """Where each of t patches goes when some are kept, and all others go to one place: keep (B, n) → (B, t)."""
    to = torch.full((keep.shape[0], t), others, device=keep.device)
    return to.scatter(1, keep, torch.arange(keep.shape[1], device=keep.device).expand_as(keep))


def pick(tokens: Tokens, keep: Tensor, prefix: int) -> Tokens:
    """The prefix and each image's own patches: keep (B, n), counted without the prefix."""
    head = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    every = torch.cat([head, keep + prefix], dim=1)
    size = None if tokens.size is None else take(tokens.size.expand(keep.shape[0], -1), every)
    owner = None if tokens.owner is None else moved(tokens.owner, places(keep, tokens.x.shape[1] - prefix))
    place = None if tokens.place is None else take(tokens.place, keep)
    return Tokens(take(tokens.x, every), size, owner, place)


def first(tokens: Tokens, n: int, prefix: int) -> Tokens:
    """The prefix and the first `n` patches, for every image alike."""
    owner = tokens.owner
    owner = None if owner is None else torch.where(owner < n, owner, NOBODY)
    size = None if tokens.size is None else tokens.size[:, : prefix + n]
    place = None if tokens.place is None else tokens.place[:, :n]
    return Tokens(tokens.x[:, : prefix + n], size, owner, place)


def merged_tokens(tokens: Tokens, merged: Merged) -> Tokens:
    """Tokens after a merge; what they stand for is worked out only where it is tracked."""
    if tokens.owner is None:
        return Tokens(merged.x, merged.size, log_size=merged.log_size, normed=merged.normed)
    place = None if tokens.place is None else take(tokens.place, merged.found.keep)
    return Tokens(merged.x, merged.size, moved(tokens.owner, merged.found.to), place, merged.log_size, merged.normed)
