"""How many patches per block: the error of candidates, the allocation under a budget, Algorithm 1."""

from patchslim.search.schedule import Draft, Drops
from patchslim.search.target import Target

__all__ = ["Draft", "Drops", "Target"]
