"""Figures. matplotlib is imported only when one is drawn."""

from patchslim.report.comparison import draw_comparison, markdown
from patchslim.report.pictures import draw_kept, draw_sources

__all__ = ["draw_comparison", "draw_kept", "draw_sources", "markdown"]
