"""Every method by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from patchslim.errors import PatchslimError
from patchslim.peers.dynamicvit import DynamicViT
from patchslim.peers.evit import EViT
from patchslim.peers.hvt import Hvt
from patchslim.peers.method import Method
from patchslim.peers.ours import MODES, Ours
from patchslim.peers.power import Power
from patchslim.peers.scop import Scop
from patchslim.peers.tome import ToMe
from patchslim.peers.uniform import Uniform
from patchslim.peers.vtp import Vtp

PEERS: tuple[Callable[[], Method], ...] = (Power, Scop, Hvt, Vtp, Uniform, ToMe, EViT, DynamicViT)


def make_methods(names: Sequence[str]) -> list[Method]:
    """Fresh methods, in the order asked for; PatchslimError for a name that is none. `all` stands for every one."""
    known: dict[str, Method] = {mode: Ours(mode) for mode in MODES}
    known |= {method.name: method for method in (make() for make in PEERS)}
    asked = [name for word in names for name in (known if word == "all" else [word])]
    strangers = [name for name in asked if name not in known]
    if strangers or not asked:
        what = f"There is no method {strangers[0]!r}" if strangers else "No method is named"
        raise PatchslimError(f"{what}; choose from {', '.join(known)}, or all.")
    return [known[name] for name in dict.fromkeys(asked)]
