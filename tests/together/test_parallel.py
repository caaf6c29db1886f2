"""Several processes train a slim model: torch's DistributedDataParallel over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from small import make_host
from together import two_processes


def test_two_processes_come_to_the_same_weights(tmp_path: Path) -> None:
    start, paths = make_host().state_dict(), os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    words = [sys.executable, two_processes.__file__, str(tmp_path)]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ends = {kind: torch.load(tmp_path / f"{kind} 0.pt") for kind in ("host", "everything", *two_processes.WAYS[1:])}
    for kind, own in ends.items():
        other = torch.load(tmp_path / f"{kind} 1.pt")
        assert all(torch.equal(own[name], other[name]) for name in own), kind
        assert not torch.equal(own["blocks.0.attn.qkv.weight"], start["blocks.0.attn.qkv.weight"])
    for name, wanted in ends["host"].items():
        torch.testing.assert_close(ends["everything"][name], wanted, rtol=1e-4, atol=1e-6)
