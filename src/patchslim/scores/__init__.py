"""Patch scores as pure tensor functions: nothing here knows of models, files or plans."""

from patchslim.scores.impact import impact, own_energy, path_moment, propagate
from patchslim.scores.simple import attention_norm, radial_scores, random_scores, uniform_scores

__all__ = [
    "attention_norm",
    "impact",
    "own_energy",
    "path_moment",
    "propagate",
    "radial_scores",
    "random_scores",
    "uniform_scores",
]
