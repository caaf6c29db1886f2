"""Models that are made of nothing and filled afterwards, as large ones are loaded."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import patchslim as ps
from small import WAYS, plan_for
from together.alike import LIBRARIES, answered, check_alike, host_of, slimmed

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
@pytest.mark.parametrize("way", ["", *WAYS])
@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_are_all_that_a_model_of_nothing_lacks(library: str, way: str) -> None:
    host = host_of(library)
    plan, weights = plan_for(host, way) if way else (ps.full_plan(host), {})
    slim = ps.apply(host, plan, weights)
    nothing = {
        "apply": ps.apply(copy.deepcopy(host).to("meta"), plan, weights),
        "to meta": copy.deepcopy(slim).to("meta"),
        "to empty": copy.deepcopy(slim).to("meta").to_empty(device="cpu"),
    }
    for name, own in nothing.items():
        own.load_state_dict(slim.state_dict(), strict=True, assign=name != "to empty")
        give_buffers_(own, host)
        assert torch.equal(answered(own), answered(slim)), name


def give_buffers_(model: nn.Module, host: nn.Module) -> None:
    """What the host has in no state dict, as transformers' position numbers, is no part of a plan."""
    for name, buffer in host.named_buffers():
        if name not in host.state_dict():
            where, _, own = name.rpartition(".")
            model.get_submodule(where).register_buffer(own, buffer, persistent=False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_and_it_learns(library: str) -> None:
    host = host_of(library)
    empty = slimmed(host).to("meta")
    empty.load_state_dict(host.state_dict(), strict=True, assign=True)
    give_buffers_(empty, host)
    check_alike(empty, host)


def test_a_run_is_loaded_where_new_tensors_are_on_meta(tmp_path: Path) -> None:
    slim = slimmed(host_of("timm"), "merge")
    ps.save(slim, tmp_path / "run")
    with torch.device("meta"):
        loaded = ps.load(tmp_path / "run")
    assert torch.equal(answered(loaded), answered(slim))
