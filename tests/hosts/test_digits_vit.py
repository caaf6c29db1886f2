"""The bundled model: small, registered with timm, and a host like any other."""

import timm
import torch

import patchslim as ps
from patchslim.hosts.digits_vit import DIGITS_WEIGHTS


def test_bundled_model() -> None:
    assert DIGITS_WEIGHTS.stat().st_size < 3_000_000
    model = timm.create_model("digits_vit", pretrained=True).eval()
    info = ps.inspect(model)
    assert (info.name, info.patches, info.prefix_tokens, info.classes) == ("digits_vit", 64, 1, 10)
    images = ps.open_images("digits:test", model=model)
    right = total = 0
    with torch.inference_mode():
        for pixels, labels in images.batches(100):
            right += int((model(pixels).argmax(1) == labels).sum())
            total += len(labels)
    assert total == 500
    assert right / total > 0.98
