"""Ways to damage a file that know its format: JSON, lines of JSON, tensors in safetensors, pictures. Each says what."""

from __future__ import annotations

import copy
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.reliability.damage import Damage

LONG, DEEP = "x" * 5000, 2000
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-9, 1e300, 10**30, -(10**30), 2**31, 2**63, 100_000),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "0", "../../etc", "é\u0000\ud7ff", LONG),
    *([], {}, [[]], [None], {"": None}, [0] * 1000),
)


def edit_json(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """One change in a JSON file."""
    data = json.loads(path.read_bytes())
    said = change(rng, data)
    path.write_text(written(data, said), encoding="utf-8", errors="surrogatepass")
    return said


def edit_line(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """One line of a file of JSON lines: changed, removed, doubled or moved."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    number, how = rng.randrange(len(lines)), rng.choice(("changed", "changed", "removed", "doubled", "moved"))
    line = lines.pop(number)
    if how == "changed":
        data = json.loads(line)
        said = change(rng, data)
        lines.insert(number, written(data, said) + "\n")
        how = f"changed: {said}"
    elif how == "doubled":
        lines[number:number] = [line, line]
    elif how == "moved":
        lines.insert(rng.randrange(len(lines) + 1), line)
    path.write_text("".join(lines), encoding="utf-8", errors="surrogatepass")
    return f"line {number} {how}"


def change(rng: Random, data: Any) -> str:
    """Change one thing in JSON data, in place: a value, a key, an item."""
    places = list(_places(data))
    where, holder, key = rng.choice(places)
    how = rng.choice(("value", "value", "value", "number", "remove", "add", "exchange", "deep", "text"))
    if how == "remove":
        del holder[key]
        return f"{where} removed"
    if how == "add":
        own, value = holder[key], rng.choice(VALUES)
        if isinstance(own, dict):
            own[rng.choice(("more", "", "kind", "version"))] = value
        elif isinstance(own, list):
            own.insert(rng.randrange(len(own) + 1), copy.deepcopy(rng.choice(own)) if own else value)
        elif isinstance(holder, list):
            holder.insert(key, own)
        else:
            holder["more"] = value
        return f"something added at {where}"
    if how == "number" and isinstance(holder[key], int | float):
        own = holder[key]
        holder[key] = rng.choice((own + 1, own - 1, -own, own * 2, own * 1000, own / 2, str(own), [own]))
    elif how == "exchange":
        _, other, name = rng.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif how == "deep":
        holder[key] = "DEEP"
        return f"{where} nested {DEEP} deep"
    elif how == "text" and isinstance(holder[key], str):
        holder[key] = rng.choice((holder[key].upper(), holder[key][:-1], holder[key] + " ", f"../{holder[key]}"))
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return f"{where} = {json.dumps(holder[key])[:60]}"


def written(data: Any, said: str) -> str:
    """JSON, with the nest where one belongs: json.dumps would not write it."""
    return json.dumps(data).replace('"DEEP"', "[" * DEEP + "]" * DEEP) if said.endswith("deep") else json.dumps(data)


def _places(data: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every value of JSON data: its name, what holds it, and its key there."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(pairs):
        yield f"{where}.{key}".lstrip("."), data, key
        yield from _places(value, f"{where}.{key}".lstrip("."))


def edit_tensors(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """One change in a safetensors file that leaves it readable."""
    weights = load_file(path)
    names = [name for name, own in weights.items() if own.size]
    name = rng.choice(names)
    own, same = weights[name], [other for other in names if weights[other].shape == weights[name].shape != ()]
    how = rng.choice(("exchange", "number", "number", "nan", "scale", "half", "rename", "drop", "reshape", "negate"))
    if how == "exchange" and len(same) > 1:
        other = rng.choice([other for other in same if other != name])
        weights[name], weights[other], how = weights[other], own, f"exchanged with {other}"
    elif how in ("number", "nan"):
        flat = own.reshape(-1)
        place = rng.randrange(flat.size)
        flat[place] = np.nan if how == "nan" and own.dtype.kind == "f" else flat[place] * 2 + 1
    elif how == "half":
        weights[name] = own.astype(rng.choice((np.float16, np.float64, np.int32)))
    elif how == "rename":
        weights[f"{name}x"] = weights.pop(name)
    elif how == "drop":
        del weights[name]
    elif how == "reshape":
        weights[name] = own.reshape(-1)[: rng.randrange(own.size)] if own.size > 1 else own.reshape(-1)
    else:
        weights[name] = own * 1.5 if how == "scale" else -own
    save_file({key: np.ascontiguousarray(tensor) for key, tensor in weights.items()}, path)
    return f"{name}: {how}"


def edit_header(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """The header of a safetensors file lies: its length, or what it says of a tensor."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.3:
        wrong = rng.choice((0, 1, size - 1, size + 1, len(data), 2**31, 2**40, 2**63))
        path.write_bytes(struct.pack("<Q", wrong) + data[8:])
        return f"header length {wrong}"
    header = json.loads(data[8 : 8 + size])
    said = change(rng, header)
    text = written(header, said).encode("utf-8", errors="surrogatepass")
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return f"header: {said}"


def bomb(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """A small PNG of a huge picture."""
    width, height = rng.choice(((13_000, 13_000), (30_000, 30_000), (60_000, 2), (2, 60_000), (2**31 - 1, 2**31 - 1)))
    depth, kind = rng.choice(((1, 0), (8, 0), (16, 0), (8, 2), (16, 6)))
    row = bytes(1 + (width * depth * {0: 1, 2: 3, 6: 4}[kind] + 7) // 8) if width < 2**20 else b""
    rows = min(height, 2**24 // len(row)) if row else 1  # a decoder makes room for all before it reads the first
    packed = zlib.compress(row * rows, 1)
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    chunks = [_chunk(name, own) for name, own in ((b"IHDR", head), (b"IDAT", packed), (b"IEND", b""))]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return f"a PNG of {width}×{height}, {depth} bits, kind {kind}"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


FORMATS: dict[str, tuple[Damage, ...]] = {
    ".json": (edit_json, edit_json, edit_json),
    ".jsonl": (edit_line, edit_line, edit_line),
    ".safetensors": (edit_tensors, edit_tensors, edit_header),
}
