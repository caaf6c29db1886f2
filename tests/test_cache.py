"""The cache of a search: what it reads back, what a crash cut short, and what is damaged or another's."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import patchslim as ps
from patchslim.cache import ENTRIES, Cache, begun
from patchslim.methods import PS
from small import make_host, make_images

KEY, OTHER = ("error", (13, 9, 6, 0), ()), ("distance", 2)


def layer(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def filled(folder: Path | None) -> Cache:
    """Two entries, one with a module."""
    cache = Cache(folder)
    cache.put(KEY, {"error": 0.1 + 0.2, "order": [3, 1, 2]})
    cache.put(OTHER, {}, layer(1))
    return cache


def test_entries_and_modules_are_read_back_to_the_last_bit(tmp_path: Path) -> None:
    filled(tmp_path / "new" / "folder")
    for cache in (filled(None), Cache(tmp_path / "new" / "folder")):
        assert cache.get(KEY) == {"error": 0.1 + 0.2, "order": [3, 1, 2]}
        assert cache.get(("error", (13, 9, 6, 1), ())) is None
        assert cache.get(OTHER) == {}
        like = layer(2)
        found = cache.module(OTHER, like)
        assert torch.equal(found.weight, layer(1).weight)  # type: ignore[arg-type]
        assert torch.equal(like.weight, layer(2).weight)
        assert cache.module(OTHER, like) is found


def test_what_is_asked_for_again_is_not_made_again(tmp_path: Path) -> None:
    made = iter([0.25, 0.5])
    assert filled(tmp_path).once(("new",), lambda: {"error": next(made)}) == {"error": 0.25}
    again = Cache(tmp_path)
    assert again.once(("new",), lambda: {"error": next(made)}) == {"error": 0.25}
    assert again.once(KEY, lambda: {"error": next(made)}) == {"error": 0.1 + 0.2, "order": [3, 1, 2]}


def test_the_last_word_on_a_key_counts(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.put(KEY, {"error": 0.5})
    cache.put(OTHER, {}, layer(3))
    for own in (cache, Cache(tmp_path)):
        assert own.get(KEY) == {"error": 0.5}
        assert torch.equal(own.module(OTHER, layer(2)).weight, layer(3).weight)  # type: ignore[arg-type]


def test_a_line_that_a_crash_cut_short_is_forgotten_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    whole = (tmp_path / ENTRIES).read_bytes()
    first = whole.index(b"\n") + 1
    for cut in {*range(0, len(whole), 13), first - 1, first, first + 1, len(whole) - 1, len(whole)}:
        (tmp_path / ENTRIES).write_bytes(whole[:cut])
        cache = Cache(tmp_path)
        assert (cache.get(KEY) is not None) == (cut >= first)
        assert (cache.get(OTHER) is not None) == (cut == len(whole))
        cache.put(("more",), {"a": 1})
        lines = [json.loads(line) for line in (tmp_path / ENTRIES).read_text().splitlines()]
        assert [line["key"] for line in lines][-1] == '["more"]'
        assert len(lines) == 1 + (cut >= first) + (cut == len(whole))


def test_a_crash_before_the_line_leaves_nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is written first: whoever finds the line finds the module too."""

    def crash(path: Path, state: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("patchslim.cache.write_weights", crash)
    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).put(OTHER, {}, layer(1))
    assert not (tmp_path / ENTRIES).exists()


def test_a_crash_between_new_weights_and_their_line_leaves_the_entry_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    before = (tmp_path / ENTRIES).read_bytes()
    Cache(tmp_path).put(OTHER, {"epoch": 2}, layer(3))
    (tmp_path / ENTRIES).write_bytes(before)
    assert torch.equal(Cache(tmp_path).module(OTHER, layer(2)).weight, layer(1).weight)  # type: ignore[arg-type]
    Cache(tmp_path).put(OTHER, {"epoch": 2}, layer(3))
    assert torch.equal(Cache(tmp_path).module(OTHER, layer(2)).weight, layer(3).weight)  # type: ignore[arg-type]


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    (module,) = tmp_path.glob("module-*")
    good = module.read_bytes()
    for bad in (b"xx", good[:-5], good[:-1] + bytes([good[-1] ^ 1]), None):  # the last: another number, a whole file
        module.unlink() if bad is None else module.write_bytes(bad)
        with pytest.raises(ps.RunError, match="The search can't be resumed: "):
            Cache(tmp_path).module(OTHER, layer(2))
    (tmp_path / ENTRIES).write_text('{"a": 1}\n')
    with pytest.raises(ps.RunError, match="is damaged, so the search can't be resumed; remove the folder"):
        Cache(tmp_path)


def test_no_byte_of_a_line_can_change_unseen(tmp_path: Path) -> None:
    filled(tmp_path)
    whole, known = (tmp_path / ENTRIES).read_bytes(), Cache(tmp_path)
    told = 0
    for place in range(0, len(whole), 3):
        (tmp_path / ENTRIES).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = Cache(tmp_path)
        except ps.RunError:
            told += 1
        else:  # the last line's end, as if a crash had cut it
            assert found.entries.items() <= known.entries.items()
    assert told > len(whole) / 3 - 3


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    filled(tmp_path)
    with (tmp_path / ENTRIES).open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no space
    assert begun(tmp_path)
    with pytest.raises(ps.RunError, match="is damaged, so the search can't be resumed"):
        Cache(tmp_path)


def test_what_was_found_out_about_something_else_is_refused(tmp_path: Path) -> None:
    about = {"weights": "w", "search": {"seed": 0, "memory_gib": 2.0}}
    Cache(tmp_path, about).put(KEY, {"error": 0.5})
    less = {"weights": "w", "search": {"seed": 0, "memory_gib": 0.1}}  # under another bound the same is found
    assert Cache(tmp_path, less).get(KEY) == {"error": 0.5}
    for other in ({**about, "weights": "v"}, {**about, "search": {"seed": 1, "memory_gib": 2.0}}, {}):
        with pytest.raises(ps.RunError, match="is damaged, so the search can't be resumed"):
            Cache(tmp_path, other)


def test_a_cache_of_another_search_is_refused(tmp_path: Path) -> None:
    """Else its errors would be taken for one's own."""
    model, images = make_host(), make_images(3)

    def slim(method: object = "merge", seed: int = 0, **asked: float) -> None:
        ps.slim(model, images, method, seed=seed, cache=tmp_path, **(asked or {"macs": 0.8}))  # type: ignore[arg-type]

    slim()
    before = (tmp_path / ENTRIES).read_bytes()
    with pytest.raises(ps.RunError, match=f"The cache in {tmp_path} is of another method; choose another folder."):
        slim("cover")
    with pytest.raises(ps.RunError, match="of another method"):
        slim(ps.methods.Merge(blocks=2))
    with pytest.raises(ps.RunError, match="of another seed"):
        slim(seed=1)
    images = make_images(3, seed=2)
    with pytest.raises(ps.RunError, match="of another set of images"):
        slim()
    images, model = make_images(3), make_host(seed=1)
    with pytest.raises(ps.RunError, match="of another model"):
        slim()
    assert (tmp_path / ENTRIES).read_bytes() == before
    model = make_host()
    slim(macs=0.7)  # another limit goes on from it
    slim(tolerance=0.1)


def test_a_cache_that_does_not_say_what_it_is_of_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(ps.RunError, match="of another search"):
        ps.slim(make_host(), make_images(2), PS(), cache=tmp_path)
