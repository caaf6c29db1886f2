"""The search for a plan: reconstruction error, Algorithm 1, budgets."""

from patchslim.search.config import SearchConfig
from patchslim.search.run import search, sweep

__all__ = ["SearchConfig", "search", "sweep"]
