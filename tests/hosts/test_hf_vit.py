"""transformers' models as hosts: against themselves, and every way of slimming against the masked reference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import patchslim as ps
from hf_small import FEW, MADE, make_hf
from patchslim.hosts import answer_of, open_host
from patchslim.hosts.hf_parts import tower_of
from patchslim.kernels.attention import plain
from patchslim.recover.learning import by_layer
from patchslim.slimmed import own_keys
from small import WAYS, make_images, plan_for, relative

pytestmark = pytest.mark.filterwarnings("ignore:There is no packed attention")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_everything_kept_gives_the_hosts_outputs(kind: str, attention: str) -> None:
    model, images = make_hf(kind, attention), make_images()
    slim: Any = ps.apply(model, ps.full_plan(model))
    assert isinstance(slim, type(model))
    wanted, found = model(pixel_values=images), slim(pixel_values=images)
    assert type(found) is type(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert relative(found[name], value) <= 1e-5, name
    host = open_host(model)
    x: Any = host.embed(images)
    for block in host.blocks:
        x = block(x, None)
    assert relative(host.logits(x), answer_of(wanted)) <= 1e-5
    assert host.logits(x).shape[1] == host.info.classes
    assert relative(host.features(x, torch.ones(x.shape[:2])), host.features(x)) <= 1e-5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FEW)
@torch.no_grad()
def test_every_way_equals_the_masked_reference(kind: str, way: str) -> None:
    model, images = make_hf(kind, "eager" if way in ("carry", "merge") else "sdpa"), make_images(2)
    plan, weights = plan_for(model, way)
    slim: Any = ps.apply(model, plan, weights)
    output = slim(pixel_values=images)
    assert relative(answer_of(output), ps.masked_logits(model, plan, images, weights)) <= 1e-5
    assert relative(answer_of(output), answer_of(model(images))) > 1e-4
    if "last_hidden_state" in output and way != "carry":
        left = plan.counts[-1] + ps.inspect(model).prefix_tokens
        assert output.last_hidden_state.shape[1] == left


@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_macs_equal_the_counter(kind: str) -> None:
    model, image = make_hf(kind, "eager"), make_images(1)
    for way in ("", "drop", *(("merge", "threshold") if kind in FEW else ())):
        plan, weights = plan_for(model, way) if way else (ps.full_plan(model), {})
        slim = ps.apply(model, plan, weights)
        with FlopCounterMode(display=False) as counter:
            slim(image)
        assert counter.get_total_flops() == 2 * int(ps.image_macs(slim, image)), way


@pytest.mark.parametrize("kind", FEW)
@torch.no_grad()
def test_attention_maps_and_halves_are_the_layers_own(kind: str) -> None:
    model = make_hf(kind, "eager")
    host = open_host(model)
    x = host.embed(make_images(2))
    block: Any = host.blocks[0]
    names = host.math.names
    own = getattr(block, names.attn)(getattr(block, names.norm1)(x), None)[1]
    assert relative(host.attention(block, x, 5), own[:, :, :5]) <= 1e-5
    math = host.math
    assert relative(math.feed(block, math.attend(block, x, plain)), block(x, None)) <= 1e-5
    lying = x.transpose(0, 1).contiguous().transpose(0, 1)
    for carry in (False, True):
        torch.testing.assert_close(math.run(block, lying, 4, carry), math.run(block, x, 4, carry))


@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_the_readout_moment_sees_what_the_head_reads(kind: str) -> None:
    """Tokens that the moment leaves out can be anything; the rows of means and pools sum to one."""
    host = open_host(make_hf(kind))
    tokens = torch.randn(2, host.info.tokens, host.info.width, generator=torch.Generator().manual_seed(5))
    moment = host.readout_moment(tokens)
    unread = moment.diagonal(dim1=1, dim2=2)[0] == 0
    other = torch.where(unread[:, None], torch.randn_like(tokens), tokens)
    assert torch.equal(host.features(other), host.features(tokens))
    assert relative(host.features(torch.randn_like(tokens)), host.features(tokens)) > 0.1
    rows = {"class": 1, "class+distillation": 2, "class+mean": 2, "mean": 1, "attention-pool": 1}
    read = {"class": 1, "class+distillation": 2, "class+mean": 1 + host.info.patches}
    assert torch.allclose(moment.sum(dim=(1, 2)), torch.full((2,), float(rows[host.info.readout])), atol=1e-5)
    assert int((~unread).sum()) == read.get(host.info.readout, host.info.patches)


def test_a_weight_of_nothing_is_as_if_the_patch_were_not_there() -> None:
    for kind in ("Dinov2ForImageClassification", "SiglipVisionModel", "CLIPForImageClassification"):
        host = open_host(make_hf(kind))
        tokens = torch.randn(2, host.info.tokens, host.info.width, generator=torch.Generator().manual_seed(5))
        weight = torch.ones(tokens.shape[:2])
        weight[:, -4:] = 0
        assert relative(host.features(tokens, weight), host.features(tokens[:, :-4])) <= 1e-5


@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_a_run_folder_brings_the_model_back(kind: str, tmp_path: Path) -> None:
    model, images = make_hf(kind, "eager"), make_images()
    slim: Any = ps.apply(model, *plan_for(model, "predict"))
    ps.save(slim, tmp_path / "run")
    again: Any = ps.load(tmp_path / "run")
    assert type(again) is type(slim)
    assert ps.inspect(again) == ps.inspect(slim)
    found, wanted = again(pixel_values=images), slim(pixel_values=images)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert again.config.id2label == model.config.id2label
    assert set(slim.state_dict()) - own_keys(slim) == set(model.state_dict())


@torch.no_grad()
def test_the_forward_signature_stays() -> None:
    model, images = make_hf(), make_images(2)
    slim: Any = ps.apply(model, plan_for(model, "drop")[0])
    labels = torch.tensor([1, 2])
    output = slim(pixel_values=images, labels=labels)
    assert torch.allclose(output.loss, nn.functional.cross_entropy(output.logits, labels))
    (logits,) = slim(images, return_dict=False)
    assert torch.equal(logits, output.logits)
    for asked in ({"output_hidden_states": True}, {"output_attentions": True}, {"attention_mask": torch.zeros(2, 17)}):
        with pytest.raises(ps.PlanError, match="A slim model"):
            slim(images, **asked)


@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_what_a_config_asks_for_is_refused_as_a_keyword_is(kind: str) -> None:
    model, images = make_hf(kind, "eager"), make_images(2)
    slim: Any = ps.apply(model, plan_for(model, "drop")[0])
    config = tower_of(slim).config
    for wanted in ("output_hidden_states", "output_attentions"):
        setattr(config, wanted, True)
        with pytest.raises(ps.PlanError, match="no hidden states or attentions"):
            slim(images)
        slim(images, **{wanted: False})
        setattr(tower_of(model).config, wanted, True)
        with pytest.raises(ps.UnsupportedModel, match=r"switch output_hidden_states and .* off"):
            ps.inspect(model)
        setattr(config, wanted, False)
        setattr(tower_of(model).config, wanted, False)
    slim(images)


@torch.no_grad()
def test_tuples_are_given_where_the_config_says_so_and_not_taken() -> None:
    model, images = make_hf("ViTModel"), make_images(2)
    slim: Any = ps.apply(model, plan_for(model, "drop")[0])
    pooled = slim(images).pooler_output
    model.config.return_dict = slim.config.return_dict = False
    assert torch.equal(slim(images)[1], pooled)
    for asked in (lambda: answer_of(slim(images)), lambda: ps.inspect(model)):
        with pytest.raises(ps.UnsupportedModel, match="return_dict to True"):
            asked()


@pytest.mark.parametrize(("kind", "way"), [("ViTForImageClassification", "merge"), ("SiglipVisionModel", "drop")])
@torch.no_grad()
def test_a_slim_model_is_traced_whole(kind: str, way: str) -> None:
    model, images = make_hf(kind), make_images(2)
    slim: Any = ps.apply(model, *plan_for(model, way))
    torch.compiler.reset()
    traced: Any = torch.compile(slim, fullgraph=True, backend="eager")
    assert relative(answer_of(traced(pixel_values=images)), answer_of(slim(pixel_values=images))) <= 1e-5
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda model: setattr(model.vit.layers[1].attention, "q_proj", nn.Softmax(dim=1)),
            "block 1 with torch.nn.modules.activation.Softmax in attention.q_proj: what it makes of a token depends",
        ),
        (lambda model: setattr(model.vit.layers[2].mlp, "activation_fn", nn.Softmax(dim=1)), "Softmax in mlp"),
        (
            lambda model: model.vit.layers[2].attention.register_forward_hook(print),
            "block 2, whose attention has a hook .* hook attention.o_proj",
        ),
        (lambda model: setattr(model.config, "output_hidden_states", True), "switch output_hidden_states"),
        (lambda model: delattr(model.vit.layers[0].attention, "scaling"), "transformers 5.22 or newer"),
    ],
)
def test_what_is_not_reproduced_is_refused(change: Any, told: str) -> None:
    model = make_hf()
    change(model)
    with pytest.raises(ps.UnsupportedModel, match=told):
        ps.inspect(model)


@pytest.mark.parametrize("kind", FEW)
@torch.no_grad()
def test_parts_of_others_are_taken_where_they_act_on_every_token(kind: str) -> None:
    model, images = make_hf(kind), make_images(2)
    wanted, macs = answer_of(model(images)), ps.count_macs(model)
    model(images, output_hidden_states=True)  # transformers leaves hooks behind
    host = open_host(model)
    for block in host.blocks:
        names = host.math.names
        for name in (names.norm1, names.mlp, *(f"{names.attn}.{own}" for own in ("q_proj", names.attention.out))):
            block.set_submodule(name, nn.Sequential(block.get_submodule(name)))
    slim: Any = ps.apply(model, ps.full_plan(model))
    assert relative(answer_of(slim(images)), wanted) <= 1e-5
    assert ps.count_macs(model) == macs


def test_layer_decay_is_refused() -> None:
    with pytest.raises(ps.RecoverError, match="not for ViTForImageClassification"):
        by_layer(make_hf(), ps.RecoverConfig(layer_decay=0.8), 1.0)
    assert by_layer(make_hf(), ps.RecoverConfig(), 1.0)


def test_other_architectures_are_refused() -> None:
    import transformers as hf

    words = {"vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    whole = hf.CLIPModel(hf.CLIPConfig(vision_config=make_hf("CLIPVisionModel").config.to_dict(), text_config=words))
    with pytest.raises(ps.UnsupportedModel, match=r"slim its tower, model\.vision_model"):
        ps.inspect(whole)
    assert ps.inspect(whole.vision_model).readout == "class"
    with pytest.raises(ps.UnsupportedModel, match="ViTMAEModel of transformers can't be slimmed"):
        ps.inspect(hf.ViTMAEModel(hf.ViTMAEConfig(**words | {"image_size": 32, "patch_size": 8})))
