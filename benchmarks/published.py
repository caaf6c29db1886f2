"""What *Patch Slimming for Efficient Vision Transformers* prints in its three tables, row by row.

FLOPs there are multiply-adds, in G; throughput was measured on a V100. The ratio of a row is what its `FLOPs ↓` leaves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TI, S, B = (f"deit_{size}_patch16_224" for size in ("tiny", "small", "base"))
T2T = "t2t_vit_14"
BASELINE, PS, DPS = "Baseline", "PS", "DPS"


@dataclass(frozen=True)
class Row:
    """A row of Table 1 (or 3, which has neither reduction nor throughput): percent, G, percent, images/s, percent."""

    model: str  # by timm's name
    method: str
    top1: float
    top5: float
    gmacs: float
    reduction: float
    throughput: int | None = None
    gain: float | None = None

    @property
    def ratio(self) -> float:
        """Share of the base model's multiply-adds that is left."""
        return round(1 - self.reduction / 100, 3)

    def as_dict(self) -> dict[str, Any]:
        """For a raw file."""
        return asdict(self) | {"ratio": self.ratio}


TABLE1 = (
    Row(TI, BASELINE, 72.2, 91.1, 1.3, 0.0, 2536, 0.0),
    Row(TI, "SCOP", 68.9, 89.0, 0.8, 38.4, 3372, 33.0),
    Row(TI, "PoWER", 69.4, 89.2, 0.8, 38.4, 3304, 30.3),
    Row(TI, "HVT", 69.7, 89.4, 0.7, 46.2, 3524, 38.9),
    Row(TI, PS, 72.0, 91.0, 0.7, 46.2, 3576, 41.0),
    Row(TI, DPS, 72.1, 91.1, 0.6, 53.8, 3639, 43.5),
    Row(S, BASELINE, 79.8, 95.0, 4.6, 0.0, 940, 0.0),
    Row(S, "SCOP", 77.5, 93.5, 2.6, 43.6, 1310, 39.4),
    Row(S, "PoWER", 78.3, 94.0, 2.7, 41.3, 1295, 37.8),
    Row(S, "HVT", 78.0, 93.8, 2.4, 47.8, 1335, 42.1),
    Row(S, PS, 79.4, 94.7, 2.6, 43.6, 1321, 40.5),
    Row(S, DPS, 79.5, 94.8, 2.4, 47.8, 1342, 42.8),
    Row(B, BASELINE, 81.8, 95.6, 17.6, 0.0, 292, 0.0),
    Row(B, "SCOP", 79.7, 94.5, 10.2, 42.0, 403, 38.1),
    Row(B, "PoWER", 80.1, 94.6, 10.4, 39.2, 397, 35.8),
    Row(B, "VTP", 80.7, 95.0, 10.0, 43.2, 412, 41.0),
    Row(B, PS, 81.5, 95.4, 9.8, 44.3, 414, 41.8),
    Row(B, DPS, 81.6, 95.4, 9.4, 46.6, 413, 41.3),
    Row(T2T, BASELINE, 81.5, 95.4, 5.2, 0.0, 764, 0.0),
    Row(T2T, "PoWER", 79.9, 94.4, 3.5, 32.7, 991, 29.7),
    Row(T2T, PS, 81.1, 95.2, 3.1, 40.4, 1055, 38.1),
    Row(T2T, DPS, 81.3, 95.3, 3.1, 45.4, 1078, 41.1),
)
# Rows whose FLOPs and FLOPs ↓ do not go together; the latter is taken, as throughput follows it.
AT_ODDS = frozenset({(B, "PoWER"), (T2T, DPS)})

# Table 3 has DeiT-S only, and no percentages: 2.6 of 4.6 G is Table 1's 43.6 %.
TABLE3 = (
    Row(S, BASELINE, 79.8, 95.0, 4.6, 0.0),
    Row(S, "Uniform pruning", 77.2, 93.8, 2.6, 43.6),
    Row(S, PS, 79.4, 94.7, 2.6, 43.6),
)


@dataclass(frozen=True)
class Model:
    """A row of Table 2: G and percent. A slim one has its host's model, and the G of the host."""

    name: str
    gmacs: float
    top1: float
    model: str  # by timm's name
    slim: str = ""  # PS or DPS
    host_gmacs: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Share of the host's multiply-adds that is left."""
        return 1.0 if self.host_gmacs is None else round(self.gmacs / self.host_gmacs, 3)

    def as_dict(self) -> dict[str, Any]:
        """For a raw file."""
        return asdict(self) | {"ratio": self.ratio}


NEAR_PVT = "timm has PVT v2, its successor, not PVT; {} is nearest in size"
TABLE2 = (
    Model("DeiT-S", 4.6, 79.8, S),
    Model("DeiT-B", 17.5, 81.8, B),
    Model("PVT-Small", 3.8, 79.8, "pvt_v2_b2", note=NEAR_PVT.format("B2")),
    Model("PVT-Medium", 6.7, 81.2, "pvt_v2_b3", note=NEAR_PVT.format("B3")),
    Model("PVT-Large", 9.8, 81.7, "pvt_v2_b4", note=NEAR_PVT.format("B4")),
    Model("T2T-ViT-14", 5.2, 81.5, T2T),
    Model("T2T-ViT-19", 8.9, 81.9, "t2t_vit_19"),
    Model("T2T-ViT-24", 14.1, 82.3, "t2t_vit_24"),
    Model("TNT-S", 5.2, 81.5, "tnt_s_patch16_224"),
    Model("TNT-B", 14.1, 82.9, "tnt_b_patch16_224"),
    Model("Swin-T", 4.5, 81.3, "swin_tiny_patch4_window7_224"),
    Model("Swin-S", 8.7, 83.0, "swin_small_patch4_window7_224"),
    Model("Swin-B", 15.4, 83.5, "swin_base_patch4_window7_224"),
    Model("LV-ViT-S", 6.6, 83.3, "lvvit_s"),
    Model("LV-ViT-M", 16.0, 84.1, "lvvit_m", note="16.0 G are printed; the model has 12.7"),
    Model("PS-LV-ViT-S", 4.7, 82.4, "lvvit_s", PS, 6.6),
    Model("DPS-LV-ViT-S", 4.5, 82.9, "lvvit_s", DPS, 6.6),
    Model("PS-LV-ViT-M", 8.6, 83.5, "lvvit_m", PS, 16.0),
    Model("DPS-LV-ViT-M", 8.3, 83.7, "lvvit_m", DPS, 16.0),
)
