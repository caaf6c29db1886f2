"""Our ToMe and EViT beside their authors' own code, on the same weights and images.

    git clone https://github.com/facebookresearch/ToMe tome
    git clone https://github.com/youweiliang/evit evit
    python benchmarks/peer_parity.py --tome tome --evit evit --checkpoint deit_tiny_patch16_224.safetensors \
        --data imagenet-val-dev-0000.tar --out results/peer_parity_deit_tiny.json

Their code was written for an older timm. Nothing of it is changed: modules that it imports and that are gone by now
are filled in before the import, with what today's timm has under other names.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import timm.layers
import timm.models
import torch
from torch import Tensor, nn

from harness import head
from patchslim.cli.common import open_device, open_model, workers_for
from patchslim.data import ImageSource, open_images
from patchslim.files import write_json
from patchslim.hosts import open_host
from patchslim.peers.evit import EViT, choose
from patchslim.peers.method import Job
from patchslim.peers.tome import ToMe

EXACT = 4  # batches that run in double precision too


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tome", type=Path, help="a checkout of facebookresearch/ToMe")
    parser.add_argument("--evit", type=Path, help="a checkout of youweiliang/evit")
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True, help="labelled images")
    parser.add_argument("--images", type=int, help="a sample of them")
    parser.add_argument("--r", nargs="+", type=int, default=[8, 13], help="ToMe's tokens per block")
    parser.add_argument("--keep-rate", nargs="+", type=float, default=[0.7, 0.5], help="EViT's")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def their_tome(checkout: Path, model: nn.Module, r: int) -> nn.Module:
    """ToMe's own patch of a model."""
    sys.path.insert(0, str(checkout))
    patched: Any = copy.deepcopy(model)
    importlib.import_module("tome").patch.timm(patched)
    patched.r = r
    return patched  # type: ignore[no-any-return]


def their_evit(checkout: Path, model: nn.Module, rate: float) -> nn.Module:
    """EViT's own model with the same weights, reorganising in blocks 4, 7 and 10."""
    _fill_in()
    sys.path.insert(0, str(checkout))
    module, host = importlib.import_module("evit"), open_host(model).info
    keep = [rate if layer in (3, 6, 9) else 1 for layer in range(host.depth)]
    their = module.EViT(
        img_size=host.image_size[0],
        patch_size=host.image_size[0] // host.grid[0],
        num_classes=host.classes,
        embed_dim=host.width,
        depth=host.depth,
        num_heads=host.heads,
        keep_rate=keep,
        fuse_token=True,
    )
    their.load_state_dict(model.state_dict())
    return their.to(next(model.parameters()).device).eval()  # type: ignore[no-any-return]


def _fill_in() -> None:
    """What EViT's files import and today's timm has elsewhere or not at all; none of it is used for inference."""

    def module(name: str, **names: Any) -> None:
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
        for key, value in names.items():
            setattr(sys.modules[name], key, value)

    layers = timm.layers
    module(
        "timm.models.helpers",
        build_model_with_cfg=timm.models.build_model_with_cfg,
        named_apply=timm.models.named_apply,
        adapt_input_conv=timm.models.adapt_input_conv,
    )
    module(
        "timm.models.layers",
        trunc_normal_=layers.trunc_normal_,
        lecun_normal_=layers.lecun_normal_,
        to_2tuple=layers.to_2tuple,
    )
    module("timm.models.registry", register_model=lambda function: function)
    module("torchprofile", profile_macs=None)


@torch.inference_mode()
def answers(models: Sequence[nn.Module], batches: Iterable[Tensor]) -> list[Tensor]:
    """Logits of several models on the same images: (images, classes) each."""
    device = next(models[0].parameters()).device
    found = [[model(batch.to(device)).cpu() for model in models] for batch in batches]
    return [torch.cat(own) for own in zip(*found, strict=True)]


def compared(ours: nn.Module, theirs: nn.Module, images: ImageSource, size: int, **about: Any) -> dict[str, Any]:
    """Top-1 of both on the same images, and how far apart they are: in single precision, where a tie may go either
    way, and on the first batches in double, where none does."""
    labels = torch.cat([labels for _, labels in images.batches(size)])
    one, two = answers([ours, theirs], (batch for batch, _ in images.batches(size)))
    apart = (one - two).abs().amax(dim=1)
    few = (batch.double() for batch, _ in itertools.islice(images.batches(size), EXACT))
    exact = answers([copy.deepcopy(model).double() for model in (ours, theirs)], few)
    return about | {
        "images": len(labels),
        "top1": float((one.argmax(dim=1) == labels).double().mean() * 100),
        "their_top1": float((two.argmax(dim=1) == labels).double().mean() * 100),
        "other_answers": int((one.argmax(dim=1) != two.argmax(dim=1)).sum()),
        "median_difference": float(apart.median()),
        "images_apart_by_1e-4": int((apart > 1e-4).sum()),
        "float64_images": len(exact[0]),
        "float64_largest_difference": float((exact[0] - exact[1]).abs().max()),
    }


@torch.inference_mode()
def same_choice(theirs: Any, images: ImageSource, batch_size: int) -> dict[str, int]:
    """Given the attention that their own blocks see, on how many images and stages we keep the same patches."""
    kind, device = type(theirs.blocks[0].attn), next(theirs.parameters()).device
    attention: Callable[..., Any] = kind.forward
    alike = asked = 0

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal alike, asked
        result = attention(self, *args, **kwargs)
        kept, seen = result[2], result[3]
        if kept is not None:
            alike += int((choose(seen, kept.shape[1])[0] == kept).all(dim=1).sum())
            asked += len(kept)
        return result

    kind.forward = look
    try:
        for batch, _ in images.batches(batch_size):
            theirs(batch.to(device))
    finally:
        kind.forward = attention
    return {"choices": asked, "same_choices": alike}


def main() -> None:
    """Compare what was given, writing after each row."""
    args = parse()
    device = open_device(args.device)
    model = open_model(args.model, args.checkpoint).to(device)
    images = open_images(args.data, model=model, limit=args.images, split="test", workers=workers_for(device))
    job = Job(open_host(model), images)
    args.images = len(images)
    result: dict[str, Any] = head(args, device) | {"tome": [], "evit": []}
    del result["calibration_images"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for r in args.r if args.tome else []:
        ours = ToMe().with_schedule(job, [r] * job.host.info.depth)
        theirs = their_tome(args.tome, model, r)
        ratio = ours.macs / job.budget(1.0)
        result["tome"].append(compared(ours.module, theirs, images, args.batch_size, r=r, macs_ratio=ratio))
        print(result["tome"][-1], flush=True)
        write_json(args.out, result)
    for rate in args.keep_rate if args.evit else []:
        ours = EViT().with_rate(job, rate)
        their_own = their_evit(args.evit, model, rate)
        ratio = ours.macs / job.budget(1.0)
        row = compared(ours.module, their_own, images, args.batch_size, keep_rate=rate, macs_ratio=ratio)
        result["evit"].append(row | same_choice(their_own, images, args.batch_size))
        print(result["evit"][-1], flush=True)
        write_json(args.out, result)


if __name__ == "__main__":
    main()
