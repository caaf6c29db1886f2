"""Models that are made of nothing and filled afterwards, as large ones are loaded."""

import copy
from typing import Any

import pytest
import torch

import patchslim as ps
from small import WAYS, plan_for
from together.alike import LIBRARIES, answered, check_alike, host_of, slimmed

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@pytest.mark.parametrize("way", ["", *WAYS])
@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_are_all_that_a_model_of_nothing_lacks(library: str, way: str) -> None:
    host = host_of(library)
    slim = slimmed(host, way)
    wanted = answered(slim)
    for fill in ("assign", "to_empty", "apply on meta"):
        if fill == "apply on meta":
            plan, weights = plan_for(host, way) if way else (ps.full_plan(host), {})
            bare = {name: tensor.to("meta") for name, tensor in weights.items()}
            empty: Any = ps.apply(copy.deepcopy(host).to("meta"), plan.with_(weights=""), bare)
        else:
            empty = copy.deepcopy(slim).to("meta")
        if fill == "to_empty":
            empty.to_empty(device="cpu")
        empty.load_state_dict(slim.state_dict(), strict=True, assign=fill != "to_empty")
        for name, buffer in host.named_buffers():  # those of the host that no state dict holds are the user's matter
            if name not in host.state_dict():
                empty.get_submodule(name.rpartition(".")[0]).register_buffer(name.rpartition(".")[2], buffer, False)
        assert torch.equal(answered(empty), wanted), fill


@pytest.mark.parametrize("library", LIBRARIES)
def test_and_it_learns(library: str) -> None:
    host = host_of(library)
    empty = slimmed(host).to("meta")
    empty.load_state_dict(host.state_dict(), strict=True, assign=True)
    check_alike(empty, host)


def test_a_run_is_loaded_where_new_tensors_are_on_meta(tmp_path: Any) -> None:
    slim = slimmed(host_of("timm"), "merge")
    ps.save(slim, tmp_path / "run")
    with torch.device("meta"):
        loaded = ps.load(tmp_path / "run")
    assert torch.equal(answered(loaded), answered(slim))
