"""Recovery: a slim model gets its accuracy back from the network it was made from."""

from patchslim.recover.config import RecoverConfig
from patchslim.recover.run import Recovered, finetune, recover

__all__ = ["RecoverConfig", "Recovered", "finetune", "recover"]
