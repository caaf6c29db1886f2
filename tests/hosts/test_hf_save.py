"""`save_pretrained` of a slim model writes its host, whole and without alarm, and says that the plan is not in it."""

import copy
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import patchslim as ps
from hf_small import MADE, make_hf
from patchslim.errors import PatchslimWarning
from patchslim.hosts import answer_of, as_host
from small import make_images, plan_for


@pytest.mark.parametrize("way", ["drop", "merge"])
@pytest.mark.parametrize("kind", list(MADE))
@torch.no_grad()
def test_transformers_and_patchslim_open_the_host_again(kind: str, way: str, tmp_path: Path) -> None:
    host, images = make_hf(kind), make_images(2)
    slim: Any = ps.apply(host, *plan_for(host, way))
    with pytest.warns(PatchslimWarning, match=r"patchslim\.save") as told:
        slim.save_pretrained(tmp_path)
    assert len(told) == 1
    assert told[0].filename == __file__
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [type(host).__name__]
    pooler = {"add_pooling_layer": False} if "without" in kind else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, report = type(host).from_pretrained(tmp_path, output_loading_info=True, **pooler)
        opened = ps.open_hf(tmp_path)
    assert not any(report.values())
    for model in (again, opened):
        assert type(model) is type(host)
        assert torch.equal(answer_of(model.eval()(images)), answer_of(host(images)))


def test_copies_and_pickles_save_themselves(tmp_path: Path) -> None:
    host = make_hf()
    slim: Any = ps.apply(host, *plan_for(host, "merge"))
    file = io.BytesIO()
    torch.save(slim, file)
    file.seek(0)
    for number, other in enumerate((copy.deepcopy(slim), torch.load(file, weights_only=False))):
        with torch.no_grad():
            other.classifier.bias.fill_(number + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.save_pretrained(tmp_path / "net")
        opened: Any = ps.open_hf(tmp_path / "net")
        assert opened.classifier.bias.tolist() == [number + 1] * 10
    assert torch.equal(slim.classifier.bias, host.classifier.bias)


def test_the_hosts_own_stays_as_it_is(tmp_path: Path) -> None:
    host = make_hf()
    slim = ps.apply(host, *plan_for(host, "merge"))
    for model in (host, as_host(slim)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.save_pretrained(tmp_path)  # type: ignore[operator]
