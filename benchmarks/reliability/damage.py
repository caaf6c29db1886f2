"""Ways to damage a file: of its bytes, of the file as a whole, of a tar. Each says what it did.

Every function takes a source of chance, the file, and other files of the same kind that could be mistaken for it.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[Random, Path, Sequence[Path]], str]
BLOCK = 512  # bytes, of a tar
CANARY = "executed"  # a file beside the damaged ones that a planted pickle would write


def flip_bits(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """One bit, or a few."""
    data, places = bytearray(path.read_bytes()), []
    for _ in range(rng.choice((1, 1, 3, 20))):
        places.append(rng.randrange(len(data) * 8))
        data[places[-1] // 8] ^= 1 << places[-1] % 8
    path.write_bytes(data)
    return f"bits {sorted(places)[:5]} flipped"


def zero_range(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Zeroes, as a hole in a file that was copied badly."""
    start, end = _range(rng, path)
    _put(path, start, bytes(end - start))
    return f"bytes {start} to {end} zeroed"


def noise_range(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Bytes of something else."""
    start, end = _range(rng, path)
    _put(path, start, rng.randbytes(end - start))
    return f"bytes {start} to {end} replaced"


def swap_ranges(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Two places exchanged."""
    data = path.read_bytes()
    size = max(1, min(len(data) // 2, rng.choice((1, 4, 64, BLOCK, 4096))))
    first = rng.randrange(len(data) - 2 * size + 1)
    second = rng.randrange(first + size, len(data) - size + 1)
    _put(path, first, data[second : second + size])
    _put(path, second, data[first : first + size])
    return f"{size} bytes at {first} and {second} exchanged"


def truncate(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A file cut short."""
    size = path.stat().st_size
    left = rng.choice((0, 1, 8, size // 2, size - 1, rng.randrange(size)))
    os.truncate(path, max(0, min(left, size - 1)))
    return f"cut to {left} of {size} bytes"


def extend(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Something after the end: zeroes, noise, or the file once more."""
    what, more = rng.choice((("zeroes", bytes(1000)), ("noise", rng.randbytes(100)), ("itself", path.read_bytes())))
    with path.open("ab") as file:
        file.write(more)
    return f"{what} after the end"


def huge_hole(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A file of 100 GB that takes no room on the disk."""
    os.truncate(path, 100 * 10**9)
    return "extended to 100 GB by a hole"


def another(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Another run's file of the same name."""
    if not others:
        return truncate(rng, path, others)
    source = rng.choice(others)
    shutil.copyfile(source, path)
    return f"replaced by {'/'.join(source.parts[-3:])}"


def pipe(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A FIFO: whoever opens it waits."""
    path.unlink()
    os.mkfifo(path)
    return "a FIFO in its place"


def device(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A link to a device; some never end."""
    target = rng.choice(("/dev/zero", "/dev/urandom", "/dev/null", "/dev/full", "/dev/tty"))
    return _link(path, target)


def loop(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A link to itself, or to nowhere."""
    return _link(path, rng.choice((path.name, "nowhere")))


def folder(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A folder under the file's name."""
    path.unlink()
    path.mkdir()
    return "a folder in its place"


def missing(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Nothing under its name."""
    path.unlink()
    return "removed"


def planted(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A pickle that would write a file if it were read: bare, old, or in torch.save's zip."""
    kind = rng.choice(("bare", "text", "zip"))
    path.write_bytes(trap(path.parent, kind))
    return f"a pickle in its place ({kind})"


class Trap:
    """What its pickle does when it is read."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.canary)!r}, 'w').close()",)


def trap(place: Path, kind: str) -> bytes:
    """The bytes of a pickle that writes a file into a folder."""
    data = pickle.dumps(Trap(place.absolute() / CANARY), protocol=0 if kind == "text" else 2)
    if kind != "zip":
        return data
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        for name, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
            file.writestr(f"archive/{name}", content)
    return whole.getvalue()


def zero_block(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """One block of a tar, so also one header: that looks like its end."""
    block = rng.randrange(path.stat().st_size // BLOCK)
    _put(path, block * BLOCK, bytes(BLOCK))
    return f"block {block} zeroed"


def drop_blocks(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Some blocks of a tar are not there: what follows moves up."""
    data, block = path.read_bytes(), rng.randrange(path.stat().st_size // BLOCK)
    more = rng.choice((1, 2, 3))
    path.write_bytes(data[: block * BLOCK] + data[(block + more) * BLOCK :])
    return f"{more} blocks removed at block {block}"


def without_end(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A tar without its end mark."""
    path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(rng.choice((0, 1, 100, 511))))
    return "the end mark removed"


def joined(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A second tar after the first one's end, as `cat` does it."""
    source = rng.choice([path, *others])
    data = source.read_bytes()
    with path.open("ab") as file:
        file.write(data)
    return f"{source.name} after the end"


def _range(rng: Random, path: Path) -> tuple[int, int]:
    size = path.stat().st_size
    start = rng.randrange(size)
    return start, min(size, start + rng.choice((1, 4, 16, 64, 512, 4096)))


def _put(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def _link(path: Path, target: str) -> str:
    path.unlink()
    path.symlink_to(target)
    return f"a link to {target} in its place"


BYTES: tuple[Damage, ...] = (flip_bits, zero_range, noise_range, swap_ranges, truncate, extend)
WHOLE: tuple[Damage, ...] = (another, pipe, device, loop, folder, missing, planted, huge_hole)
TAR: tuple[Damage, ...] = (zero_block, drop_blocks, without_end, joined)
