"""Figures. matplotlib is imported only when one is drawn."""

from patchslim.report.kept import draw_kept
from patchslim.report.sources import draw_sources

__all__ = ["draw_kept", "draw_sources"]
