"""The methods patchslim is compared with, in the same harness as its own modes."""

from patchslim.peers.compare import CompareConfig, compare
from patchslim.peers.method import Cell, Job, Method, PeerConfig, Unreachable
from patchslim.peers.names import make_methods
from patchslim.peers.speed import SpeedConfig

__all__ = [
    "Cell",
    "CompareConfig",
    "Job",
    "Method",
    "PeerConfig",
    "SpeedConfig",
    "Unreachable",
    "compare",
    "make_methods",
]
