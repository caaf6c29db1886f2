"""Throughput of models on one batch, beside a base that is made ready once, and MACs by torch's own counter."""

from __future__ import annotations

import torch
from timm.data import resolve_model_data_config
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from patchslim.cli.common import open_model
from patchslim.peers import SpeedConfig
from patchslim.peers.store import Row
from patchslim.timing import in_turns
from patchslim.timing.modes import Ready, modes_for, prepare
from patchslim.timing.running import forget_compiled, in_dtype

MOST_MODELS = 256  # that one process compiles


def counted_macs(name: str) -> int:
    """MACs per image of any model of timm, by torch's counter, attention not fused; nothing is computed."""
    set_fused_attn(False)
    try:
        with torch.device("meta"):
            model = open_model(name)
    finally:
        set_fused_attn(True)
    size = resolve_model_data_config(model)["input_size"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *size, device="meta"))
    return int(counter.get_total_flops()) // 2


class Watch:
    """Times models on one batch (B, C, H, W), beside a base once there is one."""

    def __init__(self, batch: Tensor, config: SpeedConfig, warm: bool = False) -> None:
        self.batch, self.config, self.warm = batch, config, warm
        self.modes = modes_for(config.modes, batch.device, threshold=False)
        self.base: Ready | None = None
        if any(mode.startswith("compiled") for mode in self.modes):
            forget_compiled(MOST_MODELS)

    def time(self, model: nn.Module, *, as_base: bool = False) -> Row:
        """Images per second in the fastest mode, all modes, and the base's in the same turns."""
        prepared = prepare(in_dtype(model, self.config.dtype), self.batch, self.modes)
        if self.warm:
            return {"failed": prepared.failed}
        beside = [] if self.base is None else [self.base]
        calls = [own.call for own in (*prepared.ready.values(), *beside)]
        timings = in_turns(calls, self.batch.device, self.config.seconds)
        rates = {mode: own.throughput(len(self.batch)) for mode, own in zip(prepared.ready, timings, strict=False)}
        best = max(rates, key=lambda mode: rates[mode])
        row: Row = {"throughput": rates[best], "mode": best, "modes": rates, "failed": prepared.failed}
        if self.base is not None:
            other = timings[-1].throughput(len(self.batch))
            row |= {"base_throughput": other, "speedup": rates[best] / other}
        if as_base:
            self.base = prepared.ready[best]
            row |= {"base_throughput": rates[best], "speedup": 1.0}
        return row

    def prepare_base(self, model: nn.Module, mode: str) -> None:
        """Make a base ready in a mode that is known to be its fastest, for rows that are not there yet."""
        ready = prepare(in_dtype(model, self.config.dtype), self.batch, [mode]).ready
        self.base = next(iter(ready.values()))
