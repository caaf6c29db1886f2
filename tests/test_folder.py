"""The life cycle of a folder that long work is done in: fresh, interrupted, gone on with, taken by something else."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from patchslim.errors import BudgetError, PatchslimError, PatchslimWarning, RunError
from patchslim.events import Listener
from patchslim.folder import ITSELF, LOCK, LOG, SOURCE, STARTED, blank, check_folder, versions, working
from power import Interrupted

ABOUT = {"model": "vit", "settings": {"seed": 0, "step": 10}, SOURCE: "images/"}
FOUND = "found.txt"  # what the work here keeps in its memory


def begin(
    folder: Path, memory: str = "search", about: Mapping[str, Any] = ABOUT, **settings: Any
) -> AbstractContextManager[Listener]:
    """Work that is worth going on with once it has found something."""
    return working(folder, memory, about, (folder / memory / FOUND).exists, **settings)


def fail(folder: Path, error: BaseException, finds: bool, memory: str = "search") -> None:
    """Work that is logged, finds something or not, and ends in an error."""

    def work() -> None:
        with begin(folder, memory) as told:
            told({"event": "begun"})
            if finds:
                (folder / memory / FOUND).write_text("x")
            raise error

    with pytest.raises(type(error)):
        work()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_done_work_leaves_its_results_and_a_log(tmp_path: Path) -> None:
    folder, heard = tmp_path / "runs" / "a", list[Any]()
    with begin(folder, listen=heard.append) as told:
        assert json.loads((folder / "search" / STARTED).read_text()) == ABOUT | {"versions": versions()}
        for event in ({"event": "kept", "block": 3}, {"event": "step", "done": 1}, {"event": "done"}):
            told(event)
        (folder / "plan").write_text("x")
    assert names(folder) == {"plan", LOG}
    assert [event["event"] for event in heard] == ["kept", "step", "done"]
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    assert [line.pop("seconds") >= 0 for line in lines] == [True, True]
    assert lines == [{"event": "kept", "block": 3}, {"event": "done"}]  # single steps would fill it


@pytest.mark.parametrize("error", [Interrupted(), KeyboardInterrupt(), RunError("x"), BudgetError("x")])
def test_work_that_found_nothing_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    fresh, empty, full = (tmp_path / name for name in ("fresh", "empty", "full"))
    empty.mkdir()
    full.mkdir()
    (full / "mine").write_text("x")
    for folder in (fresh, empty, full):
        fail(folder, error, finds=False)
    assert not fresh.exists()
    assert names(empty) == set()
    assert names(full) == {"mine", LOG}  # a folder that had something had a log, for all anyone knows


def test_interrupted_work_goes_on_with_the_same_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fail(folder, Interrupted(), finds=True)
    assert names(folder) == {LOG, "search", *(f"search/{name}" for name in (STARTED, LOCK, FOUND))}
    for changed, words in (
        ({"model": "deit"}, r"started with other model \(vit, now deit\); resume with the same, or choose another"),
        ({"settings": {"seed": 0, "step": 5}}, r"other settings \(step 10, now 5\)"),
    ):
        with pytest.raises(RunError, match=words), begin(folder, about=ABOUT | changed):
            pytest.fail("other work went on here")
    with pytest.raises(RunError, match=r"now deit\); start over\."):
        begin(folder, about=ABOUT | {"model": "deit"}, advice="start over").__enter__()
    assert (folder / "search" / FOUND).exists()
    with begin(folder, about=ABOUT | {SOURCE: "moved/"}) as told:  # where the same images lie now does not matter
        assert (folder / "search" / FOUND).read_text() == "x"
        told({"event": "resumed"})
    assert names(folder) == {LOG}
    assert [json.loads(line)["event"] for line in (folder / LOG).read_text().splitlines()] == ["begun", "resumed"]


def test_what_cannot_be_reached_is_not_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fail(folder, BudgetError("at least 0.3"), finds=True)
    assert not folder.exists()
    (folder / "macs-0.8").mkdir(parents=True)  # a result beside it stays
    fail(folder, BudgetError("at least 0.3"), finds=True)
    assert "macs-0.8" in names(folder)
    assert not (folder / "search").exists()


def test_a_second_process_is_kept_out_and_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begin(folder):
        with pytest.raises(RunError, match=f"Another process is working on {folder}; wait for it"):
            begin(folder).__enter__()
        assert names(folder) == {"search", f"search/{STARTED}", f"search/{LOCK}"}
    with begin(folder):
        pass


def test_a_killed_process_frees_the_folder_and_leaves_its_memory(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def work() -> None:
        with begin(folder):
            (folder / "search" / FOUND).write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with begin(folder):
        assert (folder / "search" / FOUND).exists()


def test_a_memory_that_lost_what_was_started_is_refused(tmp_path: Path) -> None:
    folder, started = tmp_path / "run", tmp_path / "run" / "search" / STARTED
    fail(folder, Interrupted(), finds=True)
    for content, words in ((None, f"{folder / 'search'} can't be resumed: its {STARTED}"), ("{", "is not JSON")):
        started.unlink() if content is None else started.write_text(content)
        with pytest.raises(RunError, match=words):
            begin(folder).__enter__()
    assert (folder / "search" / FOUND).exists()


def test_a_folder_that_is_its_own_memory_stays(tmp_path: Path) -> None:
    folder = tmp_path / "comparison"
    fail(folder, Interrupted(), finds=False, memory=ITSELF)
    assert not folder.exists()
    fail(folder, BudgetError("x"), finds=True, memory=ITSELF)
    with begin(folder, ITSELF):
        assert (folder / FOUND).exists()
    assert names(folder) == {STARTED, LOCK, LOG, FOUND}


def put(path: Path) -> Path:
    path.parent.mkdir()
    path.write_text("x")
    return path


@pytest.mark.parametrize(
    ("make", "resume", "words"),
    [
        (lambda folder: None, False, None),
        (lambda folder: folder.mkdir(), False, None),
        (lambda folder: put(folder / "plan"), True, None),
        (lambda folder: put(folder / "plan"), False, "already holds a run; go on with --resume, or choose another"),
        (lambda folder: put(folder / "thesis"), True, "is not empty and holds no run; choose another folder"),
        (lambda folder: folder.write_text("x"), True, "is a file; choose another folder"),
        (lambda folder: folder.symlink_to("nowhere"), False, "is a link to nowhere; choose another folder"),
    ],
)
def test_whose_folder_it_is(tmp_path: Path, make: Callable[[Path], Any], resume: bool, words: str | None) -> None:
    folder = tmp_path / "a"
    make(folder)
    if words is None:
        check_folder(folder, resume, lambda at: (at / "plan").exists())
        return
    with pytest.raises(PatchslimError, match=words):
        check_folder(folder, resume, lambda at: (at / "plan").exists())


def killed(folder: Path, finds: bool, memory: str = "search") -> None:
    """What work leaves that was killed: with its log and half of a file, and having found something or not."""
    own = folder / memory
    own.mkdir(parents=True, exist_ok=True)
    (own / STARTED).write_text(json.dumps(ABOUT | {"versions": versions()}))
    for path in (own / LOCK, folder / LOG, own / ".weights.0123abcd.patchslim", *([own / FOUND] if finds else [])):
        path.touch()


@pytest.mark.parametrize("memory", ["search", ITSELF])
def test_a_folder_where_nothing_was_found_is_as_good_as_empty(tmp_path: Path, memory: str) -> None:
    """Whatever was started there: of other images, say."""
    folder = tmp_path / "made" / "beforehand"
    killed(folder, finds=False, memory=memory)
    found = folder / memory / FOUND
    assert blank(folder, memory, found.exists)
    with begin(folder, memory, ABOUT | {"model": "deit"}):
        found.write_text("x")
        assert not blank(folder, memory, found.exists)
    for finds in (False, True):
        other = tmp_path / f"{finds}"
        killed(other, finds, memory)
        (other / "mine").touch()
        assert not blank(other, memory, (other / memory / FOUND).exists)


def test_what_lies_in_the_place_of_a_memory_is_not_touched(tmp_path: Path) -> None:
    thesis = tmp_path / "run" / "search" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    assert not blank(tmp_path / "run", "search", (tmp_path / "nothing").exists)
    with pytest.raises(RunError, match=f"its {STARTED} is missing"):
        begin(tmp_path / "run").__enter__()
    assert thesis.read_text() == "mine"


def test_only_finished_work_outlives_what_cannot_be_reached(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def work() -> None:
        with begin(folder) as told:
            told({"event": "begun"})
            (folder / "macs-0.8").mkdir()
            raise BudgetError("at least 0.3")

    with pytest.raises(BudgetError):
        work()
    assert names(folder) == {"macs-0.8", LOG}


def test_a_log_that_is_no_file_is_told(tmp_path: Path) -> None:
    killed(tmp_path, finds=True)
    (tmp_path / LOG).unlink()
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(RunError, match=rf"{LOG} is no plain file"):
        begin(tmp_path).__enter__()
    assert (tmp_path / "search" / FOUND).exists()


def test_another_version_is_told(tmp_path: Path) -> None:
    folder, started = tmp_path / "run", tmp_path / "run" / "search" / STARTED
    killed(folder, finds=True)
    for was, words in (({"patchslim": "0.1.9"}, "patchslim 0.1.9, and this is"), (None, "of another version")):
        started.write_text(json.dumps(ABOUT | {"versions": was and versions() | was}))
        with pytest.raises(RunError, match=f"started with .*{words}.*; resume with the same, or choose another folder"):
            begin(folder).__enter__()
    started.write_text(json.dumps(ABOUT | {"versions": versions() | {"timm": "0.9"}}))
    with (
        pytest.warns(PatchslimWarning, match=r"started with timm 0\.9, and this is .*may differ a little"),
        begin(folder),
    ):
        pass
    assert names(folder) == {LOG}


def test_what_a_killed_write_left_goes_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed(folder, finds=True)
    (folder / "macs-0.8").mkdir()
    mine = {".plan.0123abcd", ".patchslim", ".a.0123abcde.patchslim", "a.0123abcd.patchslim", "macs-0.8/.b.patchslim"}
    for name in {*mine, ".plan.json.0123abcd.patchslim", "macs-0.8/.model.safetensors.0123abcd.patchslim"}:
        (folder / name).touch()
    with begin(folder):
        pass
    assert names(folder) == {*mine, "macs-0.8", LOG}


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have failed, and cleaned up, just when this one wanted its lock."""
    folder, real = tmp_path / "run", Path.open
    left = [3]

    def opened(self: Path, *args: Any, **given: Any) -> Any:
        if self.name == LOCK and left[0]:
            left[0] -= 1
            self.parent.rmdir()
            folder.rmdir()
        return real(self, *args, **given)

    monkeypatch.setattr(Path, "open", opened)
    with begin(folder):
        (folder / "plan").write_text("x")
    assert names(folder) == {"plan"}


def test_many_starts_at_one_moment(tmp_path: Path) -> None:
    """Those that find nothing clean up, over and over, and never touch what another does; one of them finds a plan."""
    folder, at_work, wrong = tmp_path / "run", threading.Lock(), list[BaseException]()
    together = threading.Barrier(12)

    def work(finds: bool) -> None:
        with begin(folder) as told, nobody_else(at_work):
            told({"event": "begun"})
            assert json.loads((folder / "search" / STARTED).read_text())["model"] == "vit"
            if not finds:
                raise Interrupted
            (folder / "plan").write_text("x")

    def start(finds: bool) -> None:
        together.wait()
        for _ in range(2000 if finds else 3):
            try:
                work(finds)
                break
            except Interrupted:
                pass
            except RunError as error:
                if "Another process is working on" not in str(error):
                    wrong.append(error)
                time.sleep(0.001)
            except BaseException as error:
                wrong.append(error)

    for turn in range(10):
        finds = turn % 2 == 0
        threads = [threading.Thread(target=start, args=(finds and number == 5,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert names(folder) == ({"plan", LOG} if finds else set())
        if finds:
            shutil.rmtree(folder)


@contextmanager
def nobody_else(at_work: threading.Lock) -> Iterator[None]:
    """Fail where two are at work."""
    assert at_work.acquire(blocking=False), "two are at work"
    try:
        yield
    finally:
        at_work.release()
