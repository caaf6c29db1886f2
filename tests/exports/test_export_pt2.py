"""torch.export files: every way of slimming, every kind of host, any batch."""

import os
import sys
from pathlib import Path

import pytest
import torch

import patchslim as ps
from exports.exported import exported, slim_way
from small import make_host, make_images


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("drop", "distilled"),
        ("carry", "mean with prefix"),
        ("predict pool", "class"),
        ("predict merging context", "attention pool"),
        ("merge dropping", "lv"),
        ("evit", "registers"),
    ],
)
def test_any_batch_gives_the_models_logits(way: str, kind: str) -> None:
    slim, done = exported(way, "torch-export", kind)
    assert done.fp32.max_difference < 1e-5
    assert ps.SlimPlan.model_validate(ps.read_metadata(done.files[0])["plan"]) == slim.plan
    module = torch.export.load(done.files[0]).module()
    for count in (1, 3):
        images = make_images(count, seed=count)
        torch.testing.assert_close(module(images), slim(images), atol=1e-5, rtol=0)


def test_a_host_exports_too() -> None:
    host, done = exported("drop", "torch-export", "registers", host=True)
    images = make_images(3)
    torch.testing.assert_close(torch.export.load(done.files[0]).module()(images), host(images), atol=1e-5, rtol=0)
    assert ps.read_metadata(done.files[0])["plan"] is None


def test_a_model_without_a_plan_exports_too(tmp_path: Path) -> None:
    """VTP prunes channels, so nothing of it is said in steps."""
    images = make_images(6)
    narrow = ps.slim(make_host(depth=2), images, ps.methods.VTP(epochs=1), macs=0.8)
    done = ps.export(narrow, tmp_path / "a.pt2", "torch-export")
    torch.testing.assert_close(torch.export.load(done.files[0]).module()(images), narrow(images), atol=1e-5, rtol=0)
    assert ps.read_metadata(done.files[0])["plan"] is None


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    slim = slim_way("drop").train()
    before = {name: tensor.clone() for name, tensor in slim.state_dict().items()}
    try:
        ps.export(slim, tmp_path / "a.pt2", "torch-export")
        assert slim.training
        assert all(parameter.requires_grad for parameter in slim.parameters())
        assert all(bool((tensor == before[name]).all()) for name, tensor in slim.state_dict().items())
        assert slim.blocks[0].attn.fused_attn
    finally:
        slim.eval()


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"no archive")
    with pytest.raises(ps.ExportError, match="not a readable"):
        ps.read_metadata(tmp_path / "a.pt2")


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    """torch's own writer would end the process with a stack of C++."""
    slim = slim_way("drop")
    child = os.fork()
    if not child:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            ps.export(slim, tmp_path / "a.pt2", "torch-export")
        except ps.ExportError as error:
            (tmp_path / "told").write_text(str(error))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "a.pt2: File too large" in (tmp_path / "told").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["told"]
