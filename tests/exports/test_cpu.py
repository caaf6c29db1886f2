"""What the system says of the CPU, on machines of several kinds."""

from pathlib import Path

import pytest

from patchslim.exports.cpu import this_cpu

XEON = "processor : 0\nmodel name\t: Some Xeon\nflags\t\t: fpu avx2 avx512bw avx512_vnni avx512_vnni_not\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [(XEON, "Some Xeon", ("avx2", "avx512bw", "avx512_vnni")), (ARM, None, ("asimddp", "i8mm")), ("", None, ())],
)
def test_instructions_are_read(tmp_path: Path, text: str, name: str | None, found: tuple[str, ...]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    cpu = this_cpu(tmp_path / "cpuinfo")
    assert cpu.int8_instructions == found
    assert cpu.name == name or name is None


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert this_cpu(tmp_path / "none").int8_instructions == ()
