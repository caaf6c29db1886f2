"""Slim models: how a plan runs, the masked oracle, and run folders."""

from patchslim.slim.assemble import apply, full_plan, is_slim
from patchslim.slim.masked import masked_logits
from patchslim.slim.model import SlimModel
from patchslim.slim.store import load, load_host, save

__all__ = ["SlimModel", "apply", "full_plan", "is_slim", "load", "load_host", "masked_logits", "save"]
