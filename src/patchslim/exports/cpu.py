"""This machine's CPU: what INT8 files can count on here."""

import platform
from dataclasses import dataclass
from pathlib import Path

# Instructions that multiply eight-bit numbers faster than floats, as Linux names them; the older ones help less.
INT8_FLAGS = ("avx2", "avx_vnni", "avx512bw", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Cpu:
    """A CPU's name and those of its instruction sets that INT8 uses; none are known where the system does not tell."""

    name: str
    int8_instructions: tuple[str, ...]


def this_cpu(info: Path = INFO) -> Cpu:
    """As the system describes it."""
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in pairs}
    flags = set(facts.get("flags", facts.get("Features", "")).split())  # x86's word and ARM's
    return Cpu(facts.get("model name", platform.machine()), tuple(flag for flag in INT8_FLAGS if flag in flags))
