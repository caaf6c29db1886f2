"""transformers' own `Trainer` on a slim model: a step, a checkpoint, and going on from it."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import patchslim as ps
from hf_small import make_hf
from patchslim.errors import PatchslimWarning
from patchslim.slimmed import own_keys
from small import make_images
from together.alike import answered, check_alike, slimmed

EXAMPLES = [{"pixel_values": image, "labels": number % 10} for number, image in enumerate(make_images(8))]


def trained(model: nn.Module, folder: Path, steps: int = 1, resume: bool = False, **settings: Any) -> nn.Module:
    """The model after some steps on the same images in the same order."""
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    plain: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.01, "lr_scheduler_type": "constant", "seed": 0}
    given = quiet | plain | {"per_device_train_batch_size": 4, "max_steps": steps, "save_strategy": "no"} | settings
    arguments = hf.TrainingArguments(str(folder), **given)
    trainer = hf.Trainer(model=model, args=arguments, train_dataset=EXAMPLES)
    result = trainer.train(resume_from_checkpoint=resume)
    assert result.global_step == steps
    return model


def test_with_everything_kept_it_learns_what_the_host_learns(tmp_path: Path) -> None:
    host = make_hf()
    slim = slimmed(host)
    before = copy.deepcopy(host)
    check_alike(trained(slim, tmp_path).eval(), trained(host, tmp_path).eval(), 1e-4)
    assert not torch.equal(host.classifier.weight, before.classifier.weight)


@pytest.mark.parametrize("way", ["merge", "predict merging"])
def test_a_slim_model_learns_and_its_checkpoint_is_taken_up_again(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slim: Any = slimmed(make_hf("SiglipForImageClassification"), way)  # transformers takes up no ViT's own checkpoint
    before, moved = copy.deepcopy(slim.state_dict()), "vision_model.encoder.layers.0.mlp.fc1.weight"
    again, straight = copy.deepcopy(slim), copy.deepcopy(slim)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "gradient_checkpointing": True}
    with pytest.warns(PatchslimWarning, match="the plan is not part"):
        trained(slim, tmp_path, **settings)
    after = slim.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in own_keys(slim))
    assert not torch.equal(after[moved], before[moved])
    anew = copy.deepcopy(straight)
    anew.load_state_dict(ps.open_hf(tmp_path / "checkpoint-1").state_dict(), strict=False)
    assert torch.equal(answered(anew.eval()), answered(slim.eval()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PatchslimWarning)
        trained(again, tmp_path, steps=2, resume=True, **settings)
    assert "keys in the checkpoint" not in caplog.text
    trained(straight, tmp_path / "straight", steps=2)
    for name, wanted in straight.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], wanted, rtol=1e-4, atol=1e-6)
