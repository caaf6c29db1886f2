"""Slim models: the masked oracle, the sliced model, and their run folders."""

from patchslim.slim.masked import masked_logits
from patchslim.slim.sliced import SlimBlock, apply, full_plan, is_slim
from patchslim.slim.store import load, load_host, save

__all__ = ["SlimBlock", "apply", "full_plan", "is_slim", "load", "load_host", "masked_logits", "save"]
