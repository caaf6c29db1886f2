"""Slim models as files for other runtimes (ONNX, torch.export, OpenVINO; fp32 or INT8), checked against PyTorch."""

from patchslim.exports.formats import FORMATS, Format, metadata_of, open_format, read_metadata
from patchslim.exports.parity import Parity
from patchslim.exports.run import Exported, export

__all__ = ["FORMATS", "Exported", "Format", "Parity", "export", "metadata_of", "open_format", "read_metadata"]
