"""Figures. matplotlib is imported only when one is drawn."""

from patchslim.report.kept import draw_kept

__all__ = ["draw_kept"]
