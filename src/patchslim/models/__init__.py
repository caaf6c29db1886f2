"""Networks of the paper that timm lacks. Importing this registers them: `timm.create_model("t2t_vit_14")`.

Their parameters have the names of the official checkpoints.
"""

from patchslim.models.lv_vit import LVViT, ResidualScale
from patchslim.models.stem_vit import StemViT
from patchslim.models.t2t_vit import T2TViT

__all__ = ["LVViT", "ResidualScale", "StemViT", "T2TViT"]
