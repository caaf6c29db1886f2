"""Opening Hugging Face folders and names: weights, classes, how images are prepared, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file

import patchslim as ps
from hf_small import DINO, FEW, WIDE, make_hf
from patchslim.data.transform import data_config, transform_for
from patchslim.hosts import spec_of
from patchslim.hosts.hf_data import preparation
from patchslim.hosts.hf_open import describe_hf, is_hf_name
from small import make_images, relative


def put(model: Any, folder: Path, preprocessor: dict[str, Any] | None = None) -> Path:
    """A folder as from_pretrained reads it."""
    model.save_pretrained(folder)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


@pytest.mark.parametrize("kind", FEW)
@torch.no_grad()
def test_a_folder_opens_as_it_was_saved(kind: str, tmp_path: Path) -> None:
    model, images = make_hf(kind), make_images()
    opened: Any = ps.open_hf(put(model, tmp_path / "net"))
    assert type(opened) is type(model)
    assert not opened.training
    for name, value in model(images).items():
        assert torch.equal(opened(images)[name], value)
    assert ps.inspect(opened).name == "net"
    assert is_hf_name(str(tmp_path / "net"))
    assert not is_hf_name(str(tmp_path))


@torch.no_grad()
def test_published_names_of_weights_are_read(tmp_path: Path) -> None:
    """Checkpoints on the hub have the names of older versions of transformers."""
    model = make_hf("ViTForImageClassification")
    folder = put(model, tmp_path / "net")
    renamed = {}
    for name, tensor in model.state_dict().items():
        for now, then in (
            ("vit.layers.", "vit.encoder.layer."),
            ("attention.q_proj", "attention.attention.query"),
            ("attention.k_proj", "attention.attention.key"),
            ("attention.v_proj", "attention.attention.value"),
            ("attention.o_proj", "attention.output.dense"),
            ("mlp.fc1", "intermediate.dense"),
            ("mlp.fc2", "output.dense"),
        ):
            name = name.replace(now, then)
        renamed[name] = tensor
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    opened: Any = ps.open_hf(folder)
    assert torch.equal(opened(make_images()).logits, model(make_images()).logits)


@torch.no_grad()
def test_the_vision_tower_of_a_whole_model_is_opened(tmp_path: Path) -> None:
    words = {"vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    torch.manual_seed(0)
    clip = hf.CLIPModel(hf.CLIPConfig(vision_config=WIDE, text_config=words, projection_dim=10)).eval()
    siglip = hf.SiglipModel(hf.SiglipConfig(vision_config=WIDE, text_config=words)).eval()
    images = make_images()
    tower: Any = ps.open_hf(put(clip, tmp_path / "clip"))
    assert relative(tower(images).image_embeds, clip.visual_projection(clip.vision_model(images).pooler_output)) <= 1e-6
    tower = ps.open_hf(put(siglip, tmp_path / "siglip"))
    assert relative(tower(images).pooler_output, siglip.vision_model(images).pooler_output) <= 1e-6


@torch.no_grad()
def test_a_vit_published_without_its_pooler_is_opened_without(tmp_path: Path) -> None:
    model = make_hf("ViTModel without pooler")
    opened: Any = ps.open_hf(put(model, tmp_path / "net"))
    assert opened.pooler is None
    slim: Any = ps.apply(opened, ps.full_plan(opened))
    assert relative(slim(make_images()).last_hidden_state, model(make_images()).last_hidden_state) <= 1e-5


@torch.no_grad()
def test_dinov2_takes_the_size_its_images_are_cropped_to(tmp_path: Path) -> None:
    model = make_hf("Dinov2WithRegistersForImageClassification")  # positions for 32 pixels
    crop = {"do_center_crop": True, "size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}}
    folder = put(model, tmp_path / "net", crop | {"resample": 3})
    for size, opened in ((48, ps.open_hf(folder)), (64, ps.open_hf(folder, 64)), (32, model)):
        info, images = ps.inspect(opened), make_images(2, size)
        assert (info.image_size, info.patches) == ((size, size), (size // 8) ** 2)
        slim: Any = ps.apply(opened, ps.full_plan(opened))
        assert relative(slim(images).logits, model(images).logits) <= 1e-5
        assert data_config(slim)["input_size"] == (3, size, size)
    ps.save(slim, tmp_path / "run")
    assert ps.inspect(ps.load(tmp_path / "run")) == ps.inspect(slim)
    with pytest.raises(ps.UnsupportedModel, match="32×32 pixels only"):
        ps.open_hf(put(make_hf(), tmp_path / "vit"), 64)


PROCESSORS: dict[str, Any] = {
    "ViTForImageClassification": (hf.ViTImageProcessor, {"size": {"height": 32, "width": 32}}),
    "DeiTForImageClassificationWithTeacher": (
        hf.DeiTImageProcessor,
        {"size": {"height": 37, "width": 37}, "crop_size": {"height": 32, "width": 32}},
    ),
    "Dinov2Model": (
        hf.BitImageProcessor,
        {
            "size": {"shortest_edge": 41},
            "crop_size": {"height": 32, "width": 32},
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        },
    ),
    "CLIPVisionModel": (
        hf.CLIPImageProcessor,
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    ),
    "SiglipVisionModel": (hf.SiglipImageProcessor, {"size": {"height": 32, "width": 32}}),
}


@pytest.mark.parametrize("kind", list(PROCESSORS))
def test_images_are_prepared_as_transformers_does(kind: str, tmp_path: Path) -> None:
    cls, settings = PROCESSORS[kind]
    processor = cls(**settings)
    folder = put(make_hf(kind), tmp_path / "net")
    processor.save_pretrained(folder)
    smooth = np.linspace(0, 255, 90 * 70 * 3).reshape(90, 70, 3)
    picture = Image.fromarray((smooth + 40 * np.sin(np.arange(70) / 5)[:, None]).clip(0, 255).astype(np.uint8))
    wanted = torch.as_tensor(np.array(processor(images=picture)["pixel_values"][0]))
    for model in (ps.open_hf(folder), type(make_hf(kind)).from_pretrained(folder)):  # the file lies beside the weights
        found = transform_for(model)(picture)
        assert found.shape == wanted.shape
        apart = (found - wanted).abs() * torch.tensor(transform_for(model).std)[:, None, None] * 255
        assert float(apart.max()) <= 1.01  # grey levels: rounded here and there


def test_what_a_preprocessor_says_becomes_timms_words() -> None:
    model = make_hf("CLIPVisionModel")
    older = preparation(model, {"size": 36, "crop_size": 32, "do_center_crop": True, "resample": 2})
    assert (older["crop_mode"], older["interpolation"], 32 / older["crop_pct"]) == ("center", "bilinear", 36)
    plain = preparation(make_hf(), {"size": 32, "do_normalize": False})
    assert (plain["mean"], plain["std"], plain["crop_mode"], plain["crop_pct"]) == ((0,) * 3, (1,) * 3, "squash", 1)
    for wrong in ({"do_rescale": False}, {"rescale_factor": 1 / 127.5}, {"resample": 9}, {"size": {"height": 3}}):
        with pytest.raises(ps.DataError, match=r"preprocessor_config\.json"):
            preparation(model, wrong)


def test_bad_folders_are_told(tmp_path: Path) -> None:
    def told(folder: Path, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            ps.open_hf(folder)

    folder = put(make_hf(), tmp_path / "net")
    weights = load_file(folder / "model.safetensors")
    lacking = {name: tensor for name, tensor in weights.items() if "classifier.bias" not in name}
    save_file(lacking, folder / "model.safetensors", {"format": "pt"})
    told(folder, ps.CheckpointError, r"lack classifier\.bias")
    save_file(weights | {"classifier.bias": torch.full((10,), torch.nan)}, folder / "model.safetensors")
    told(folder, ps.CheckpointError, "NaN or infinite")
    (folder / "model.safetensors").write_bytes(b"nothing")
    told(folder, ps.CheckpointError, "can't be read")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")  # a pickle is never read
    told(folder, ps.CheckpointError, r"model\.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    told(folder, ps.UnsupportedModel, "is a BertModel")
    (folder / "config.json").write_text("{}")
    told(folder, ps.UnsupportedModel, "holds no Hugging Face model")
    with pytest.raises(ps.UnsupportedModel, match="needs the name"):
        ps.open_hf("hf:")


def test_the_hub_out_of_reach_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ps.CheckpointError, match="can't be had from the Hugging Face hub") as told:
        ps.open_hf("hf:nobody/no-such-model")
    assert "\n" not in str(told.value)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = put(make_hf(), tmp_path / "net")
    slim = ps.apply(make_hf(), ps.full_plan(make_hf()))
    ps.save(slim, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for attempt in tuple[Any, ...]((lambda: ps.open_hf(folder), lambda: ps.load(tmp_path / "run"))):
        with pytest.raises(ps.UnsupportedModel, match=r"pip install 'patchslim\[hf\]'"):
            attempt()


def test_a_model_its_config_does_not_describe_is_slimmed_but_not_saved(tmp_path: Path) -> None:
    model = make_hf("Dinov2Model")
    model.layernorm.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    slim = ps.apply(model, ps.full_plan(model))
    with pytest.raises(ps.RunError, match="can't be saved"):
        ps.save(slim, tmp_path / "run")
    with pytest.raises(ps.UnsupportedModel, match="config does not describe"):
        describe_hf(model)
    assert spec_of(make_hf("Dinov2Model"))["config"]["hidden_size"] == DINO["hidden_size"]
