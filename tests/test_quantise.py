"""Quantised layers stay within what rounding allows, in every way of slimming, and what can't be quantised is said."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.errors import PatchslimError, UnsupportedModel
from patchslim.hosts import with_matmul_embed
from patchslim.measure import BenchConfig, bench
from patchslim.quantise import check_way, quantised, rows_seen
from patchslim.timing.memory import size_of
from small import make_host, make_images, plan_for, relative
from step_plans import OURS, alone

pytest.importorskip("torchao")

WIDE: dict[str, Any] = {"embed_dim": 48}  # small hosts have widths that kernels don't take
CPU = torch.device("cpu")


def slim_and_host(way: str = "drop") -> tuple[Any, nn.Module]:
    host = make_host(**WIDE)
    return ps.apply(host, *plan_for(host, way)), host


def coarse_layers(model: nn.Module) -> set[str]:
    """Names of the layers whose weights are no longer plain."""
    return {name for name, layer in linear_layers(model) if type(layer.weight.data) is not Tensor}


def linear_layers(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]


@pytest.mark.filterwarnings("ignore:There is no packed attention")
@pytest.mark.parametrize("name", OURS)
def test_every_step_stays_close(name: str) -> None:
    host = make_host(**WIDE)
    slim, images = ps.apply(host, *alone(host, OURS[name](9))), make_images(20)
    with torch.inference_mode():
        wanted = slim(images)
        found = quantised(slim, "int8", images)(images)
    assert 0 < relative(found, wanted) < 0.2
    assert (found.argmax(dim=1) == wanted.argmax(dim=1)).float().mean() >= 0.8
    assert not coarse_layers(slim)


def test_a_layer_errs_by_no_more_than_rounding() -> None:
    """An INT8 input or weight is off by at most half a step, its largest absolute value over 127."""
    host = make_host(**WIDE)
    made = quantised(host, "int8", make_images(4))
    exact, coarse = (dict(linear_layers(model))["blocks.0.mlp.fc1"] for model in (host, made))
    x, weight = torch.randn(30, 48), exact.weight.detach()
    step_x = x.abs().amax(dim=1, keepdim=True) / 127 * 0.51
    step_w = weight.abs().amax(dim=1, keepdim=True) / 127 * 0.51
    bound = x.abs().sum(dim=1, keepdim=True) * step_w.T + step_x * weight.abs().sum(dim=1) + 48 * step_x * step_w.T
    off = (coarse(x) - exact(x)).detach().abs()
    assert (off <= bound + 1e-5).all()
    assert off.max() > 1e-4


def test_which_layers_are_quantised() -> None:
    slim, host = slim_and_host()
    images = make_images(3)
    inner = {f"blocks.{block}.mlp.fc{number}" for block in range(4) for number in (1, 2)}
    found = coarse_layers(quantised(host, "int8", images))
    assert found == inner | {f"blocks.{block}.attn.{name}" for block in range(4) for name in ("qkv", "proj")}
    # Three images have 51, 24, 15 and 12 tokens before the four blocks and 6 after the last; 17 rows are the fewest.
    found = coarse_layers(quantised(slim, "int8", images))
    kv = {f"blocks.{block}.attn.qkv.kv" for block in (0, 1)}
    first = {f"blocks.0.{name}" for name in ("attn.qkv.q", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert found == kv | first


def hf_host(kind: str) -> nn.Module:
    cls: Any = getattr(pytest.importorskip("transformers"), kind)
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3}
    model: nn.Module = cls(cls.config_class(**sizes, image_size=32, patch_size=8, num_labels=16))
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "classifiers"),
    [
        ("class", {"head"}),
        ("distilled", {"head", "head_dist"}),
        ("lv", {"head", "aux_head"}),
        ("ViTForImageClassification", {"classifier"}),
        ("DeiTForImageClassificationWithTeacher", {"cls_classifier", "distillation_classifier"}),
        ("ViTModel", {"pooler.dense"}),
    ],
)
def test_classifiers_stay_as_they_are(kind: str, classifiers: set[str]) -> None:
    """Widths and rows would do for all linear layers of these models, so that nothing else is left out."""
    host = hf_host(kind) if kind[0].isupper() else make_host(kind, **WIDE, num_classes=16)
    own = dict(linear_layers(host))
    for model in (host, with_matmul_embed(host), ps.apply(host, *plan_for(host, "drop"))):
        made = quantised(model, "int8", make_images(20))
        layers = dict(linear_layers(made))
        assert coarse_layers(made) == layers.keys() - classifiers
        for name in classifiers:
            assert type(layers[name]) is nn.Linear
            assert torch.equal(layers[name].weight, own[name].weight)


def test_what_no_family_knows_is_refused() -> None:
    hf = pytest.importorskip("transformers")
    config = hf.ViTMAEConfig(hidden_size=48, intermediate_size=96, num_hidden_layers=1, image_size=32, patch_size=8)
    with pytest.raises(UnsupportedModel, match="ViTMAEModel of transformers is no model"):
        quantised(hf.ViTMAEModel(config), "int8", make_images(20))


def test_g_chooses_as_before() -> None:
    slim, _ = slim_and_host("predict")
    assert not [name for name in coarse_layers(quantised(slim, "int8", make_images(20))) if ".step." in name]


def test_rows_are_counted_by_hand() -> None:
    host = make_host(**WIDE)
    found = rows_seen(host, make_images(5))
    assert found["blocks.2.attn.qkv"] == 5 * 17
    assert found["head"] == 5
    slim, _ = slim_and_host()
    assert "blocks.0.attn.qkv" not in rows_seen(slim, make_images(5))  # its weight is read in rows


def test_weights_take_a_quarter() -> None:
    host = make_host(embed_dim=192, depth=2)
    images = make_images(2)
    inside = sum(layer.weight.numel() for name, layer in linear_layers(host) if name != "head")
    saved = size_of(host, images) - size_of(quantised(host, "int8", images), images)
    assert saved == pytest.approx(3 * inside, rel=0.05)  # less the scales


def test_the_benchmark_has_four_combinations() -> None:
    slim, host = slim_and_host()
    found = bench(slim, host, BenchConfig(batch_sizes=[20], dtypes=["bfloat16"], seconds=0.02, quantise="int8"))
    (row,) = found["rows"]
    assert row["models"].keys() == {
        *("slim", "baseline", "baseline_same_embedding", "quantised", "baseline_quantised"),
    }
    seconds = {name: model["modes"]["eager"]["seconds_per_batch"][1] for name, model in row["models"].items()}
    assert row["speedup_quantised"] == pytest.approx(seconds["baseline_quantised"] / seconds["quantised"])
    assert row["quantised_over_slim"] == pytest.approx(seconds["slim"] / seconds["quantised"])
    assert row["quantised_over_baseline"] == pytest.approx(seconds["baseline"] / seconds["quantised"])
    assert found["quantised_to"] == "int8"


def test_the_snippet_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slim, _ = slim_and_host()
    ps.save(slim, "runs/deit_s")
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    (snippet,) = [own for own in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "quantised(" in own]
    scope: dict[str, Any] = {}
    exec(snippet, scope)
    assert relative(scope["logits"], slim(scope["batch"])) < 0.2


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PatchslimError, match="no quantisation int7"):
        check_way("int7", CPU, torch.float32)
    with pytest.raises(PatchslimError, match="float8 needs an NVIDIA GPU"):
        check_way("float8", CPU, torch.bfloat16)
    with pytest.raises(PatchslimError, match="leave autocast out"):
        BenchConfig(autocast=True, quantise="int8")
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(PatchslimError, match=r"patchslim\[quant\]"):
        check_way("int8", CPU, torch.float32)
