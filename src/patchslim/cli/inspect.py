"""`patchslim inspect`: what a model is made of, and whether it can be slimmed."""

from typing import Any

from patchslim.cli import options
from patchslim.cli.terminal import report

FACTS = (
    *("family", "depth", "width", "heads", "prefix_tokens", "patches", "grid", "image_size", "readout", "classes"),
    "parameters",
)


def inspect_model(
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    img_size: options.ImgSize = None,
    readout: options.Readout = None,
    as_json: options.AsJson = False,
) -> None:
    """Tell a model's depth, width, heads, tokens, readout and MACs, and whether it can be slimmed."""
    from patchslim.cli.opening import is_run, open_model, refuse_with_run
    from patchslim.hosts import inspect
    from patchslim.macs import count_macs
    from patchslim.methods import DEFAULT, make
    from patchslim.runs.store import load_host

    if is_run(model):
        refuse_with_run(model, checkpoint=checkpoint, img_size=img_size, readout=readout)
        network = load_host(model)
    else:
        network = open_model(model, checkpoint, img_size=img_size, readout=readout)
    info = inspect(network)
    result: dict[str, Any] = {"model": info.name, "supported": True} | {name: getattr(info, name) for name in FACTS}
    result |= {"grid": list(info.grid), "image_size": list(info.image_size), "macs": count_macs(network)}
    result["reachable_macs_ratio"] = [round(share, 4) for share in make(DEFAULT).draft(info).reachable()]
    report(result, as_json, "\n".join(f"{name.replace('_', ' '):>20}  {value}" for name, value in result.items()))
