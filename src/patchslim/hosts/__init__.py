"""Host families. `open_host` finds the one a model belongs to, or says why there is none."""

import patchslim.hosts.digits_vit  # noqa: F401  (registers itself with timm)
from patchslim.hosts.base import BlockShape, Host, HostInfo
from patchslim.hosts.block import Incoming
from patchslim.hosts.find import classifiers_of, inspect, open_host, open_slim, rebuild_host, spec_of
from patchslim.hosts.hf_data import hf_data_settings
from patchslim.hosts.hf_open import open_hf
from patchslim.hosts.hf_vit import answer_of
from patchslim.hosts.projections import split_qkv_
from patchslim.hosts.shells import as_host, shell, whole
from patchslim.hosts.timm_embed import with_matmul_embed

__all__ = [
    "BlockShape",
    "Host",
    "HostInfo",
    "Incoming",
    "answer_of",
    "as_host",
    "classifiers_of",
    "hf_data_settings",
    "inspect",
    "open_hf",
    "open_host",
    "open_slim",
    "rebuild_host",
    "shell",
    "spec_of",
    "split_qkv_",
    "whole",
    "with_matmul_embed",
]
