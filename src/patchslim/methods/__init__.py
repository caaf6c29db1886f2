"""One file per method, ours and the peers'; the registry. Every module in this folder registers its own."""

from importlib import import_module
from pkgutil import iter_modules

from patchslim.methods.base import (
    DEFAULT,
    PLAINEST,
    Fitted,
    Method,
    describe,
    make,
    names,
    package_of,
    register,
    set_to,
    settings_of,
)
from patchslim.methods.beside import sketches_beside
from patchslim.methods.task import Task, fit, model_of

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

from patchslim.methods.baselines import Attention, Radial, Random, Spread, Uniform
from patchslim.methods.cover import Cover
from patchslim.methods.dps import DPS
from patchslim.methods.drop import Drop
from patchslim.methods.dynamicvit import DynamicViT
from patchslim.methods.evit import EViT
from patchslim.methods.hvt import HVT
from patchslim.methods.merge import Merge
from patchslim.methods.power import Power
from patchslim.methods.predict import Predict
from patchslim.methods.ps import PS
from patchslim.methods.scop import SCOP
from patchslim.methods.tome import ToMe
from patchslim.methods.vtp import VTP

__all__ = ["DEFAULT", "PLAINEST", "Fitted", "Method", "Task", "describe", "fit", "make", "model_of", "names"]
__all__ += ["package_of", "register", "set_to", "settings_of", "sketches_beside"]
__all__ += ["DPS", "HVT", "PS", "SCOP", "VTP", "Attention", "Cover", "Drop", "DynamicViT", "EViT", "Merge", "Power"]
__all__ += ["Predict", "Radial", "Random", "Spread", "ToMe", "Uniform"]
