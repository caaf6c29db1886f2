"""What torch counts of a model: the independent word on MACs."""

from typing import Any

from timm.layers import set_fused_attn
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from small import make_host, make_images


def counted(model: nn.Module, size: int = 32) -> int:
    """What torch counts per image, from two: two flops are one multiply-accumulate."""
    with FlopCounterMode(display=False) as counter:
        model(make_images(2, size))
    flops: int = counter.get_total_flops()
    assert flops % 4 == 0
    return flops // 4


def unfused(kind: str = "class", **settings: Any) -> nn.Module:
    """A small host whose attention torch's counter sees."""
    set_fused_attn(False)
    try:
        return make_host(kind, **settings)
    finally:
        set_fused_attn(True)
