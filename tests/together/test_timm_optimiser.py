"""timm's optimisers: parameter groups, with weight decay and layer decay, are the host's own."""

from typing import Any

import pytest
from timm.optim import create_optimizer_v2
from torch import nn

from patchslim.slimmed import own_keys
from small import make_host
from together.alike import check_alike, slimmed, step


def groups_of(model: nn.Module, **settings: Any) -> list[tuple[set[str], dict[str, Any]]]:
    """Each group's parameters by name, and its settings."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: Any = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, **settings)
    plain = ("lr", "lr_scale", "weight_decay")
    return [
        ({names[id(own)] for own in group["params"]}, {key: group[key] for key in plain if key in group})
        for group in found.param_groups
    ]


@pytest.mark.parametrize("settings", [{}, {"layer_decay": 0.75}])
@pytest.mark.parametrize("kind", ["class", "registers", "distilled", "attention pool", "lv", "t2t"])
def test_groups_are_the_hosts(kind: str, settings: dict[str, Any]) -> None:
    host = make_host(kind)
    wanted = groups_of(host, **settings)
    assert len(wanted) > (4 if settings else 1)
    for way in ("", "drop", "merge", "predict merging"):
        assert groups_of(slimmed(host, way), **settings) == wanted


def test_what_steps_own_joins_where_it_is_asked_to_learn() -> None:
    slim = slimmed(make_host(), "merge")
    own = own_keys(slim)
    assert own
    for name in own:
        slim.get_parameter(name).requires_grad_(True)
    found = [(names, group["lr_scale"]) for names, group in groups_of(slim, layer_decay=0.75)]
    for name in own:
        block = int(name.split(".")[1])
        (scale,) = (scale for names, scale in found if name in names)
        assert scale == pytest.approx(0.75 ** (4 - block))  # as the other parameters of its block


def test_a_step_takes_slim_and_host_to_the_same_weights() -> None:
    host = make_host()
    slim = slimmed(host)
    for model in (slim, host):
        step(model)
        create_optimizer_v2(model, opt="sgd", lr=0.1, weight_decay=0.05, layer_decay=0.75).step()
    check_alike(slim, host)
