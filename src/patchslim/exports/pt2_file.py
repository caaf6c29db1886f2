"""torch.export: one graph with a free batch size, on the CPU in fp32, that every format is made from; and its own file,
a .pt2: a zip archive with the graph, the weights and the metadata."""

import copy
import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from patchslim.errors import ExportError, first_words
from patchslim.files import opened
from patchslim.hosts import HostInfo, answer_of, inspect
from patchslim.hosts.hf_parts import hf_class
from patchslim.packages import quiet, told
from patchslim.slimmed import made_from, rectangular

LARGEST_BATCH = 2**16
ATEN: Any = torch.ops.aten
MOST = 2**24  # bytes of metadata
EXTRA = "patchslim.json"  # the metadata's name among the archive's extra files


def info_of(model: nn.Module) -> HostInfo:
    """The host's description, of what a method made too; UnsupportedModel for what patchslim does not know."""
    return made_from(model) or inspect(model)


def check_exportable(model: nn.Module) -> None:
    """Raise ExportError for a model whose images keep different numbers of patches."""
    if not rectangular(model):
        raise ExportError(
            "With thresholds every image keeps another number of patches, which no fixed graph can say; "
            "slim with `--set threshold=false`, or by another method, to export."
        )


def portable(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in fp32 and eval mode: what is exported, and what the file is compared with."""
    return copy.deepcopy(model).cpu().float().eval().requires_grad_(False)


def plain_attention(model: nn.Module) -> nn.Module:
    """A copy whose attention is two matrix products and a softmax: exporters write fused attention less plainly."""
    model = copy.deepcopy(model)
    fused: list[Any] = [module for module in model.modules() if hasattr(module, "fused_attn")]
    for module in fused:
        module.fused_attn = False
    if hf_class(model) is not None:
        model.set_attn_implementation("eager")  # type: ignore[operator]
    return model


class Answering(nn.Module):
    """A model that returns its answer and nothing beside it: (B, C, H, W) → (B, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits; of a tower without a classifier its embedding or pooled output."""
        return answer_of(self.model(images))


def to_program(model: nn.Module) -> ExportedProgram:
    """The model as a torch.export program: images (B, C, H, W) for any B → logits (B, classes)."""
    info = info_of(model)
    example = torch.zeros(2, info.channels, *info.image_size)  # a batch of 1 would be taken for a constant
    shapes = ({0: Dim("batch", min=1, max=LARGEST_BATCH)},)
    with told(f"torch.export can't make a graph of {info.name}"), torch.no_grad():
        graph = model if hf_class(model) is None else Answering(model)
        program: ExportedProgram = torch.export.export(graph, (example,), dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the packages lie on this machine is nobody's business
    return program


def for_onnx(program: ExportedProgram) -> ExportedProgram:
    """x[:, 0] as a slice, of which ONNX would make a Gather; and sorting as ONNX knows it."""
    return program.run_decompositions({ATEN.select.int: _as_slice, ATEN.sort.stable: _as_sort})  # type: ignore[no-any-return]


def _as_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """ONNX's only way to sort is TopK, and its TopK keeps equal ones in their order."""
    return ATEN.topk.default(x, x.shape[dim], dim, descending)  # type: ignore[no-any-return]


def _as_slice(x: Tensor, dim: int, index: int) -> Tensor:
    end = None if index == -1 else index + 1
    return ATEN.squeeze.dims(ATEN.slice.Tensor(x, dim, index, end), [dim])  # type: ignore[no-any-return]


def write(model: nn.Module, path: Path, metadata: str) -> None:
    """Write one file with all weights in it.

    torch makes it in memory: its own writer ends the whole process where a disk is full.
    """
    program: Any = to_program(model)
    program.example_inputs = None  # images of zeros that torch would save beside the weights
    archive = io.BytesIO()
    with told(f"torch.export can't save {info_of(model).name}"):
        torch.export.save(program, archive, extra_files={EXTRA: metadata})
    path.write_bytes(archive.getbuffer())


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Run a file: images (B, C, H, W) → logits (B, classes)."""
    with quiet():
        module: Any = torch.export.load(path).module()
    return lambda images: module(images)


def read_text(path: Path) -> str | None:
    """The metadata as it was written; nothing else in the archive is opened."""
    try:
        with opened(path) as whole, zipfile.ZipFile(whole) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).parts[-2:] == ("extra", EXTRA):
                    with archive.open(name) as file:
                        return file.read(MOST + 1).decode("utf-8")  # it may say it is small and go on for ever
    except (OSError, EOFError, NotImplementedError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ExportError(f"{path} is not a readable .pt2 file: {first_words(error)}.") from None
    return None
