"""A hub that can't be reached is given up in time, without a library's own words; and bars only for eyes."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import save_file

import patchslim as ps
from commands import Run, refused
from hf_small import make_hf
from patchslim.cli.opening import open_model
from patchslim.hosts import hub


class Nothing(BaseHTTPRequestHandler):
    """A server that has nothing: it is there, though."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_who_answers_and_who_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.5)
    with HTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert hub.answers(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert not hub.answers()
    assert not hub.answers("http://127.0.0.1:9")


def test_without_a_hub_the_command_line_says_so_and_no_more(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("patchslim.cli.opening.answers", lambda place: False)
    monkeypatch.setattr("patchslim.hosts.hf_open.answers", lambda: False)
    weights = ("eval", "deit_tiny_patch16_224", "--pretrained", "--data", "digits")
    for words, told in (
        (weights, "can't be downloaded, because https://huggingface.co can't be reached; give them as a file"),
        (("inspect", "hf:nobody/nothing"), "nobody/nothing can't be had from the Hugging Face hub"),
    ):
        said = run(*words)
        refused(said, told)
        assert said[2].count("\n") == 1
    kept = make_checkpoint(tmp_path / "kept.safetensors")
    monkeypatch.setattr("patchslim.cli.opening.try_to_load_from_cache", lambda *_: kept)
    model = open_model("deit_tiny_patch16_224", pretrained=True)
    assert all(bool((own == 1).all()) for own in model.parameters())


def make_checkpoint(path: Path) -> str:
    """Weights as the hub's cache may have them: all ones."""
    model = timm.create_model("deit_tiny_patch16_224")
    save_file({name: torch.ones_like(own) for name, own in model.state_dict().items()}, path)
    return str(path)


def test_bars_are_for_terminals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_hf("ViTForImageClassification").save_pretrained(tmp_path / "net")
    capsys.readouterr()
    ps.open_hf(tmp_path / "net")
    assert capsys.readouterr() == ("", "")
    assert not are_progress_bars_disabled()  # they are the user's again
