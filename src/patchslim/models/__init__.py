"""Networks of the paper that timm lacks, with the official names of parameters; importing this registers them."""

from patchslim.models.lv_vit import LVViT, ResidualScale
from patchslim.models.stem_vit import StemViT
from patchslim.models.t2t_vit import T2TViT

__all__ = ["LVViT", "ResidualScale", "StemViT", "T2TViT"]
