"""A clock that stands still until a network runs, and then goes on by what its blocks are said to take."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from patchslim.hosts.timm_embed import MatmulPatchEmbed

Seconds = Callable[[float, float], float]  # (tokens that come in, tokens computed) → of one block


class Ticking:
    """Hooks on parts that slim blocks share with the host's, so that copies of the model move the same clock."""

    def __init__(self, model: nn.Module, block: Seconds, host: float = 0.0, slim: float = 0.0, batch: int = 2) -> None:
        """`host` and `slim` are what such a model's patch embedding takes."""
        self.now, self.incoming, self.batch = 0.0, 0.0, batch
        self.block, self.extra, self.embed = block, host - slim, slim
        modules: Any = model
        for own in modules.blocks:
            own.norm1.register_forward_hook(self._read)
            own.mlp.register_forward_hook(self._computed)
        modules.patch_embed.register_forward_hook(self._embedded_slowly)
        modules.patch_embed.norm.register_forward_hook(self._embedded)

    def __call__(self) -> float:
        return self.now

    def __deepcopy__(self, memo: Any) -> "Ticking":
        return self

    def _read(self, module: nn.Module, given: Any, found: Any) -> None:
        self.incoming = max(self.incoming, self._tokens(found))  # a merging block normalises what it keeps once more

    def _computed(self, module: nn.Module, given: Any, found: Any) -> None:
        self.now += self.block(self.incoming, self._tokens(found))
        self.incoming = 0.0

    def _tokens(self, x: Tensor) -> float:
        """Per image: x is (B, n, d), or packed (1, tokens of all images, d)."""
        return x[..., 0].numel() / self.batch

    def _embedded_slowly(self, module: nn.Module, given: Any, found: Any) -> None:
        if not isinstance(module, MatmulPatchEmbed):  # a slim model's, which keeps the host's hooks
            self.now += self.extra

    def _embedded(self, module: nn.Module, given: Any, found: Any) -> None:
        self.now += self.embed
