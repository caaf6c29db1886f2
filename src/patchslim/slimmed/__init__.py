"""From host and plan to a model: assemble it, trace its tokens, and the masked reference."""

from patchslim.slimmed.assemble import (
    apply,
    assembled_,
    frozen_keys,
    full_plan,
    is_slim,
    made_from,
    own_keys,
    plan_of,
    rectangular,
    slim_blocks,
)
from patchslim.slimmed.block import SlimBlock, State
from patchslim.slimmed.reference import masked_logits
from patchslim.slimmed.trace import image_macs, macs_of_states, sources, states_of

__all__ = [
    "SlimBlock",
    "State",
    "apply",
    "assembled_",
    "frozen_keys",
    "full_plan",
    "image_macs",
    "is_slim",
    "macs_of_states",
    "made_from",
    "masked_logits",
    "own_keys",
    "plan_of",
    "rectangular",
    "slim_blocks",
    "sources",
    "states_of",
]
