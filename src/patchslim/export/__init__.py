"""Slim models as files for other runtimes (ONNX, torch.export, OpenVINO; fp32 or INT8), checked against PyTorch."""

from patchslim.export.formats import FORMATS, Format, metadata_of, open_format, read_metadata
from patchslim.export.parity import Parity
from patchslim.export.run import Exported, export

__all__ = ["FORMATS", "Exported", "Format", "Parity", "export", "metadata_of", "open_format", "read_metadata"]
