"""The one verb that does it all."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchslim.cache import Cache
from patchslim.data import AnyImages
from patchslim.errors import MethodError, plain_number
from patchslim.events import Listener, silent
from patchslim.hosts.weights import weights_fingerprint
from patchslim.methods import DEFAULT, Task, fit, make, model_of, set_to
from patchslim.search import Target
from patchslim.version import __version__


@torch.inference_mode(False)  # searches need gradients, and what is made in that mode could never learn
def slim(
    model: nn.Module,
    images: AnyImages,
    method: Any = DEFAULT,
    *,
    macs: float | None = None,
    speedup: float | None = None,
    tolerance: float | None = None,
    batch_size: int = 32,
    memory_gib: float = 2.0,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: Listener = silent,
) -> nn.Module:
    """A slim model from a pretrained one and unlabelled images; the given model is left as it was.

    `images` are what `open_images` returns, a tensor (K, C, H, W), or any iterable of batches: a DataLoader, a list, a
    dataset, arrays, a function that gives batches. The latter are read once into memory.

    `method` is a name, or an object such as `ps.methods.PS(tune_epochs=3)`. Give `macs` (what to keep, over the
    host's), `speedup` (on the model's device, for batches of `batch_size`) or `tolerance` (relative error of what the
    head reads).
    Given a `cache` folder, everything found out is kept there, and a search that finds one goes on from it. It serves
    other ratios of the same model, images and method.
    """
    chosen = make(method) if isinstance(method, str) else method
    if isinstance(chosen, type) or not callable(getattr(chosen, "fit", None)):
        raise MethodError(f"A method is a name, or an object such as ps.methods.Merge(), and not {chosen!r}.")
    macs, speedup, tolerance = (
        value if value is None else plain_number(name, value, float)
        for name, value in {"macs": macs, "speedup": speedup, "tolerance": tolerance}.items()
    )
    batch_size, seed = plain_number("batch_size", batch_size, int, 1), plain_number("seed", seed, int, 0)
    memory_gib = plain_number("memory_gib", memory_gib, float, 0)
    target, kept = Target(tolerance, macs, speedup, batch_size), Cache(None if cache is None else Path(cache))
    how: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "memory_gib": memory_gib}
    task = Task.of(model, images, target, **how, cache=kept, progress=progress)
    if cache is not None:  # whatever a search found out holds for no other
        about = {
            "method": [getattr(chosen, "name", type(chosen).__name__), set_to(chosen)],
            "model": task.once("weights", lambda: weights_fingerprint(task.host.model)),
            "set of images": task.images.fingerprint,
            "seed": seed,
            "version of patchslim": __version__,
        }
        kept.belong_to(about)
    return model_of(fit(chosen, task), model)
