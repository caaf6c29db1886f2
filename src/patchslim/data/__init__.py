"""Images from folders, WebDataset shards, the digits set or memory, ready for a model."""

from patchslim.data.given import AnyImages, as_source
from patchslim.data.images import Images
from patchslim.data.opening import open_images
from patchslim.data.source import ImageSource, TensorImages, TrainingSource, tensor_images

__all__ = [
    "AnyImages",
    "ImageSource",
    "Images",
    "TensorImages",
    "TrainingSource",
    "as_source",
    "open_images",
    "tensor_images",
]
