"""Settings that make no sense are refused in one sentence."""

from typing import Any

import pytest
import torch

import patchslim as ps
from patchslim.recover.config import MOST_EPOCHS, USUAL_STEPS, RecoverConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": -1}, "epochs has to be a number from 0 on, not -1"),
        ({"epochs": 0, "block_epochs": 0}, "nothing to do"),
        ({"learning_rate": 0.0}, "learning_rate has to be a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate has to be a number above 0"),
        ({"held_out": 1.0}, "held_out has to be a share from 0 to below 1"),
        ({"crop_scale": 0.0}, "crop_scale has to be above 0 and at most 1"),
        ({"patience": 0}, "patience has to be a number from 1 on"),
        ({"amp": "fp16"}, "There is no amp 'fp16'"),
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.RecoverError, match=words):
        ps.RecoverConfig(**settings)


def test_bf16_is_for_gpus_unless_asked_for() -> None:
    cpu = torch.device("cpu")
    for amp, dtype in (("auto", torch.float32), ("off", torch.float32), ("bf16", torch.bfloat16)):
        with ps.RecoverConfig(amp=amp).autocast(cpu):  # type: ignore[arg-type]
            assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_epochs_follow_the_images_unless_given() -> None:
    usual = RecoverConfig()
    assert usual.epochs_over(50) == MOST_EPOCHS
    assert usual.epochs_over(usual.batch_size * 100) == USUAL_STEPS // 100
    assert usual.epochs_over(10**9) == 1
    assert RecoverConfig(epochs=7).epochs_over(10**9) == 7
