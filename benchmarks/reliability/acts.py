"""What is done with a thing that may be damaged, and what it gives: an answer that has to stay as it was.

Every act is run in a child of its own, in a folder that holds `it`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability.children import patchslim
from benchmarks.reliability.pictures import read_all
from benchmarks.reliability.subjects import COMPARE, IT, RECOVER, Subject, noise

COUNTED = (".json", ".safetensors", ".onnx", ".pt2", ".xml", ".bin")  # of a run's files, less its log
JUDGE = ("--data", "digits:test", "--limit", "4", "--device", "cpu")


@dataclass(frozen=True)
class Act:
    """A name, how often it is drawn, and what is done."""

    name: str
    weight: float
    do: Callable[[Subject], Any]


def logits(model: Any) -> str:
    """A digest of a model's answers to images of nothing."""
    import torch

    import patchslim as ps
    from patchslim.hosts import answer_of

    size = ps.inspect(model).image_size[0]
    with torch.inference_mode():
        return _digest(answer_of(model(torch.from_numpy(noise(size)))).numpy().tobytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def load(subject: Subject) -> Any:
    """The run's model from Python."""
    import patchslim as ps

    return {"logits": logits(ps.load(IT))}


def evaluate(subject: Subject) -> Any:
    """`eval`, then the model's own answers."""
    patchslim("eval", IT, *JUDGE)
    return load(subject)


def weights(folder: str = IT) -> dict[str, str]:
    """Digests of the plans and the weights below a folder."""
    found = sorted([*Path(folder).rglob("*.safetensors"), *Path(folder).rglob("plan.json")])
    return {str(path.relative_to(folder)): _digest(path.read_bytes()) for path in found}


def recover(subject: Subject) -> Any:
    """`finetune`, from the start."""
    patchslim(*RECOVER, "--epochs", "1", "--block-epochs", "0", "--again")
    return weights()


def export(subject: Subject) -> Any:
    """`export`, then the model's own answers."""
    patchslim("export", IT, "--format", "torch-export", "--out", "out.pt2")
    return load(subject)


def verify(subject: Subject) -> Any:
    """`verify`: of a run that passes, every file that counts is as it was."""
    patchslim("verify", IT)
    files = [path for path in Path(IT).iterdir() if path.suffix in COUNTED and path.name != "manifest.json"]
    return {path.name: _digest(path.read_bytes()) for path in files}


def report(subject: Subject) -> Any:
    """`report`: what a person reads of a run."""
    patchslim("report", IT, "--out", "page.html")
    return {"page": _digest(Path("page.html").read_bytes())}


def resume(subject: Subject) -> Any:
    """The command that made it, once more with --resume."""
    words = next(step for step in subject.steps if not callable(step)) if subject.kind == "run" else subject.last
    patchslim(*words, "--resume")
    return weights()


def resume_comparison(subject: Subject) -> Any:
    """A comparison gone on with; its speeds are no two times the same."""
    import json

    patchslim(*COMPARE, "--resume")
    rows = json.loads(Path(IT, "comparison.json").read_text())["rows"]
    return [{name: row[name] for name in ("method", "target_macs", "macs", "detail", "untuned")} for row in rows]


def metadata(subject: Subject) -> Any:
    """What an exported file says of itself."""
    import patchslim as ps

    endings = {"torch-export": ".pt2", "onnx": ".onnx", "openvino": ".xml"}
    return ps.read_metadata(Path(IT, f"model{endings[subject.last[-1]]}"))


def checkpoint(subject: Subject) -> Any:
    """A user's checkpoint: `eval`, then the model's answers."""
    from patchslim.cli.opening import open_model

    path = Path(IT, subject.name)
    patchslim("eval", "test_vit", "--checkpoint", str(path), "--img-size", "64", *JUDGE)
    return {"logits": logits(open_model("test_vit", path, img_size=64))}


def hf_folder(subject: Subject) -> Any:
    """A user's Hugging Face folder: `eval`, then the model's answers."""
    from patchslim.cli.opening import open_model

    patchslim("eval", IT, *JUDGE)
    return {"logits": logits(open_model(IT))}


def folder_images(subject: Subject) -> Any:
    """All images of class folders."""
    return read_all(IT)


def shard_images(subject: Subject) -> Any:
    """All images of shards."""
    return read_all(f"{IT}/shard-{{0..1}}.tar")


def acts_of(subject: Subject) -> list[Act]:
    """What can be done with a subject: no file can say what a threshold keeps."""
    return [own for own in ACTS[subject.kind] if own.do is not export or "threshold=true" not in subject.last]


ACTS: dict[str, tuple[Act, ...]] = {
    "run": (
        Act("eval", 4, evaluate),
        Act("load", 3, load),
        Act("slim --resume", 2, resume),
        Act("finetune", 1.5, recover),
        Act("report", 1.0, report),
        Act("verify", 0.7, verify),
        Act("export", 0.3, export),
    ),
    "search": (Act("slim --resume", 1, resume),),
    "sweep": (Act("slim --resume", 1, resume),),
    "recovery": (Act("finetune --resume", 1, resume),),
    "comparison": (Act("compare --resume", 1, resume_comparison),),
    "exported": (Act("read_metadata", 2, metadata), Act("load", 1, load), Act("verify", 1, verify)),
    "weights": (Act("eval --checkpoint", 1, checkpoint),),
    "hf": (Act("eval", 1, hf_folder),),
    "images": (Act("open_images", 1, folder_images),),
    "shards": (Act("open_images", 1, shard_images),),
}
