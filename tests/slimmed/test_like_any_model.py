"""A slim model is a model like any other: its parts are called, its constants are the plan's, its modes are its own."""

import copy
import threading
from typing import Any

import pytest
import torch
from timm.models import create_feature_extractor
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import patchslim as ps
from patchslim.hosts import as_host
from patchslim.slimmed import own_keys
from small import make_host, make_images, relative
from step_plans import STEPS, alone

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")
PARTS = ("blocks.1.attn.qkv", "blocks.1.attn.proj", "blocks.1.mlp.fc1", "blocks.2.mlp.fc2", "patch_embed.proj")
CONVERTED = ("bfloat16", "float16", "float64")


class LoRA(nn.Module):
    """A layer and a small one beside it."""

    def __init__(self, base: nn.Module, more: nn.Module) -> None:
        super().__init__()
        self.base, self.more = base, more

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.more(x)  # type: ignore[no-any-return]


def made(step: str, **settings: Any) -> Any:
    model = make_host(**settings)
    return ps.apply(model, *alone(model, STEPS[step](9)))


def shifted(layer: nn.Module) -> nn.Module:
    """Another layer of its shape."""
    torch.manual_seed(1)
    more = copy.deepcopy(layer)
    for weight in more.parameters():
        nn.init.normal_(weight, std=0.1)
    return more


@pytest.mark.parametrize("step", STEPS)
def test_adapters_act_as_if_they_were_in_the_weights(step: str) -> None:
    """Beside a layer stands another. The same is had by adding its weights up: that is what is compared with."""
    adapted, images = made(step), make_images()
    summed = copy.deepcopy(adapted)
    for name in PARTS:
        layer = adapted.get_submodule(name)
        more = shifted(layer)
        adapted.set_submodule(name, LoRA(layer, more))
        for weight, other in zip(summed.get_submodule(name).parameters(), more.parameters(), strict=True):
            weight.data += other
    assert relative(adapted(images), summed(images)) < 1e-5
    adapted(images).square().sum().backward()
    for name in PARTS:
        assert all(weight.grad is not None for weight in adapted.get_submodule(name).more.parameters())


@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_hooks_are_called_and_obeyed(step: str) -> None:
    slim, images = made(step), make_images()
    doubled = copy.deepcopy(slim)
    called = dict.fromkeys(PARTS, 0)
    for name in PARTS:
        for weight in doubled.get_submodule(name).parameters():
            weight.mul_(2)

        def twice(module: nn.Module, args: Any, out: Tensor, name: str = name) -> Tensor:
            called[name] += 1
            return 2 * out

        slim.get_submodule(name).register_forward_hook(twice)
    assert relative(slim(images), doubled(images)) < 1e-5
    assert min(called.values()) > 0


@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_constants_are_the_plans(step: str) -> None:
    slim, images = made(step), make_images()
    expected, weights = slim(images), slim.state_dict()
    assigned = copy.deepcopy(slim).to("meta")
    assigned.load_state_dict(weights, assign=True)
    emptied = copy.deepcopy(slim).to("meta").to_empty(device="cpu")
    emptied.load_state_dict(weights)
    assert torch.equal(assigned(images), expected)
    assert torch.equal(emptied(images), expected)
    assert {key for key, value in slim.named_parameters() if value.requires_grad} == set(weights) - own_keys(slim)


@pytest.mark.parametrize("step", STEPS)
def test_looking_on_changes_nothing(step: str) -> None:
    """Several threads ask where tokens come from while others predict."""
    slim, images = made(step, drop_path_rate=0.5).train(), make_images()
    slim.blocks.eval()
    modes = [module.training for module in slim.modules()]
    expected, logits = [rows.clone() for rows in ps.sources(slim, images)], slim(images)
    found: list[bool] = []

    def look() -> None:
        rows = ps.sources(slim, images)
        found.append(all(torch.equal(own, other) for own, other in zip(rows, expected, strict=True)))
        found.append(len(ps.image_macs(slim, images)) == len(images))

    def predict() -> None:
        found.append(torch.equal(slim(images), logits))

    threads = [threading.Thread(target=target) for target in (look, predict, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 5
    assert [module.training for module in slim.modules()] == modes


@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_an_empty_batch_has_no_answers(step: str) -> None:
    slim = made(step)
    assert slim(make_images()[:0]).shape == (0, 7)
    if slim.plan.rectangular:
        assert [rows.shape[0] for rows in ps.sources(slim, make_images()[:0])] == [0] * 4


@pytest.mark.parametrize("dtype", CONVERTED)
@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_hosts_of_any_precision(step: str, dtype: str) -> None:
    """Steps' weights come in fp32. A model in doubles says what one in fp32 says; any plan can be applied again."""
    wanted, model = getattr(torch, dtype), make_host()
    plan, weights = alone(model, STEPS[step](9))
    slim = ps.apply(model.to(wanted), plan, weights)
    assert {value.dtype for value in slim.state_dict().values()} == {wanted}
    logits = slim(make_images().to(wanted))
    assert logits.dtype == wanted
    own = {key: value for key, value in slim.state_dict().items() if key in own_keys(slim)}
    assert torch.equal(ps.apply(model, slim.plan, own)(make_images().to(wanted)), logits)  # type: ignore[arg-type]
    if dtype == "float64":
        assert relative(logits.float(), made(step)(make_images())) < 1e-4


@pytest.mark.parametrize("step", STEPS)
def test_made_in_inference_mode_it_still_learns(step: str) -> None:
    with torch.inference_mode():
        slim = made(step)
    slim.train()(make_images()).sum().backward()
    assert slim.blocks[0].attn.qkv.weight.grad is not None


@pytest.mark.parametrize("step", ["slice", "merge", "cover", "predict"])
def test_frozen_stays_frozen(step: str) -> None:
    model = make_host().requires_grad_(False)
    assert not any(weight.requires_grad for weight in ps.apply(model, *alone(model, STEPS[step](9))).parameters())


@pytest.mark.parametrize("step", ["slice", "merge", "cover", "predict, merging"])
def test_several_models_at_once(step: str) -> None:
    """Parameters stacked for vmap, as in ensembles."""
    models, images = [made(step, seed=seed) for seed in (0, 1)], make_images()
    weights, buffers = stack_module_state(models)
    both = vmap(lambda own, more: functional_call(models[0], (own, more), (images,)))(weights, buffers)
    for found, model in zip(both, models, strict=True):
        assert relative(found, model(images)) < 1e-5 or step != "slice"  # choices may differ in the last digit


@pytest.mark.parametrize("step", ["keep", "slice", "cover", "merge"])
@torch.no_grad()
def test_features_by_timms_extractor(step: str) -> None:
    """timm's way to name what is wanted of a model's graph. Whole blocks are taken as they are."""
    slim, images = made(step), make_images()
    found = create_feature_extractor(slim, ["norm", "head"])(images)
    assert torch.equal(found["norm"], slim.forward_features(images))
    assert torch.equal(found["head"], slim(images))


def test_what_somebody_put_on_a_block_is_kept() -> None:
    model: Any = make_host()
    seen: list[int] = []
    model.blocks[0].note = "mine"
    model.blocks[0].register_buffer("count", torch.tensor(3))
    model.blocks[0].register_forward_hook(lambda block, args, out: seen.append(1))
    slim: Any = ps.apply(model, ps.full_plan(model))
    slim(make_images())
    host: Any = as_host(slim)
    for own in (slim, host):
        assert (own.blocks[0].note, int(own.blocks[0].count), seen) == ("mine", 3, [1])
