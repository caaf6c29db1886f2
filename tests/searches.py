"""Methods that search by measuring, on small hosts, for the tests of searches."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import HostInfo
from patchslim.plan import SlimPlan, make_plan
from patchslim.slimmed.assemble import own_keys
from patchslim.steps import Step
from patchslim.steps.cover import Cover as CoverStep
from patchslim.steps.merge import Merge as MergeStep
from patchslim.steps.predict import Predict as PredictStep
from small import make_host, make_images, read_by, steps_for

IMAGES, PATCHES, WIDTH = 5, 16, 24
CHANNELS = (PATCHES * WIDTH // 4 - WIDTH) // (WIDTH + PATCHES)  # of a distance: as many as cost no more than keys
METHODS = ps.methods
WAYS: dict[str, Any] = {
    "merge": METHODS.Merge(blocks=None),
    "cover": METHODS.Cover(blocks=None),
    "predict": METHODS.Predict(epochs=3),
    "predict drop": METHODS.Predict(removed="drop", epochs=3),
    "threshold": METHODS.Predict(threshold=True, epochs=3),
    "dps": METHODS.DPS(epochs=3),
}
STEPS: dict[str, Callable[[int, int], Step]] = {
    "merge": lambda n, layer: MergeStep(n=n, channels=CHANNELS),
    "cover": lambda n, layer: CoverStep(n=n, channels=CHANNELS),
    "predict": lambda n, layer: PredictStep(n=n, merge=True, selector="context", hidden=WIDTH // 12),
    "predict drop": lambda n, layer: PredictStep(n=n, selector="context", hidden=WIDTH // 12),
    "threshold": lambda n, layer: PredictStep(n=n, selector="mlp", hidden=WIDTH // 12),
    "dps": lambda n, layer: PredictStep(n=n, selector="pool"),
}
ASKED = [("class", 0.5), ("attention pool", 0.5), ("registers", 0.3), ("mean with prefix", 0.9)]  # hosts and shares


def slim_by(model: nn.Module, images: Tensor, way: Any, **asked: Any) -> Any:
    """A slim model by one of the ways, or by a method."""
    return ps.slim(model, images, WAYS.get(way, way) if isinstance(way, str) else way, **({"batch_size": 8} | asked))


@cache
def searched(kind: str, way: str, **asked: Any) -> Any:
    """The slim model of a small host, the same one for every test that asks."""
    return slim_by(make_host(kind), make_images(IMAGES), way, **asked)


def fewest(info: HostInfo) -> list[int]:
    """As few patches as a plan can keep."""
    return [1, 1, 1, int(info.reads_patches)]


@cache
def limits(kind: str, way: str) -> tuple[float, float]:
    """The least and the largest MAC ratio, from plans that have them."""
    model = make_host(kind)
    info = ps.inspect(model)
    least, most = (
        make_plan(info, steps_for(model, STEPS[way], counts), list(range(PATCHES)))
        for counts in (fewest(info), [PATCHES] * 4)
    )
    return ratio(model, least), ratio(model, most)


def target_at(kind: str, way: str, share: float) -> float:
    """A ratio so far from the least one to the largest."""
    low, high = limits(kind, way)
    return low + share * (high - low)


def ratio(model: nn.Module, plan: SlimPlan) -> float:
    return ps.count_macs(model, plan) / ps.count_macs(model)


@torch.no_grad()
def readout_error(model: Any, images: Tensor, slim: Any) -> float:
    """‖f̂ − f‖² / ‖f‖² by running both models, one image at a time."""
    errors = []
    for image in images.split(1):
        found, true = (read_by(one, image) for one in (slim, model))
        errors.append(float((found - true).double().square().sum() / true.double().square().sum()))
    return sum(errors) / len(errors)


def own_weights(slim: nn.Module) -> dict[str, Tensor]:
    """What the steps of a slim model own."""
    state = slim.state_dict()
    return {name: state[name] for name in sorted(own_keys(slim))}


def assert_same(slim: Any, other: Any) -> None:
    """Two slim models are the same to the last bit: plan, and weights of host and steps."""
    assert slim.plan.to_json() == other.plan.to_json()
    state, found = slim.state_dict(), other.state_dict()
    assert state.keys() == found.keys()
    assert all(torch.equal(state[name], found[name]) for name in state)
