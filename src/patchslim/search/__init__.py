"""How many patches per block: the error of candidates, the allocation under a budget, Algorithm 1."""

from patchslim.search.cost import Target
from patchslim.search.schedule import Draft, Drops

__all__ = ["Draft", "Drops", "Target"]
