"""What the docs print is real: commands parse, Python runs, links lead somewhere, numbers are in results/."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import patchslim as ps
from benchmarks.rows import read_rows
from benchmarks.table import readme_table
from patchslim import methods
from patchslim.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
USER_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*USER_PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "notebook").glob("*.md"))]


def code(page: Path, language: str) -> list[str]:
    """A page's code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `patchslim …` that a page's shell blocks run."""
    text = "\n".join(code(page, "bash")).replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("patchslim "):
            yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), target
        if heading:
            lines = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), flags=re.M)
            assert heading in {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}, target


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_commands_name_real_options(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page):
        app([words[1], "--help"], standalone_mode=False)
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--")), words
        for option, value in pairwise(words):
            if option == "--method":
                settings = dict(word.split("=") for word in words if re.fullmatch(r"[a-z_]+=\S+", word))
                assert methods.make(value, settings)
            if option == "--methods":
                assert set(value.split(",")) <= set(methods.names())


def test_the_readme_shows_every_command_that_slimming_needs() -> None:
    assert {words[1] for words in commands(ROOT / "README.md")} >= {"inspect", "slim", "finetune", "eval", "bench"}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200
    prose = re.sub(r"```.*?```", "", README, flags=re.S)
    for paragraph in re.split(r"\n\s*\n", prose):
        assert paragraph.startswith(("|", "- ")) or len(paragraph.splitlines()) <= 4, paragraph


def test_make_targets_exist() -> None:
    for target in ("demo", "test"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "pip install" in done.stdout or "patchslim" in done.stdout or "pytest" in done.stdout


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's own code, on the bundled model and the digits."""
    blocks = code(ROOT / "README.md", "python")
    assert len(blocks) == 3
    model = timm.create_model("digits_vit", pretrained=True).eval()
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: model)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for block in blocks:
        block = block.replace("my_images/", "digits").replace("=256", "=16").replace("epochs=10", "epochs=1")
        exec(block, scope)
    assert [tuple(tokens.shape)[::2] for tokens in scope["tokens"]] == [(8, 64)] * len(scope["tokens"])
    assert isinstance(scope["slim"], torch.nn.Module)
    assert type(scope["slim"]) is type(model)
    assert ps.count_macs(scope["slim"]) < ps.count_macs(model)
    assert (tmp_path / "runs" / "deit_ti" / "plan.json").exists()


def test_every_method_is_described() -> None:
    """docs/methods.md names every method of the package, and its settings with their defaults."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for name in methods.names():
        assert f"`{name}`" in page, name
    for name in ("merge", "cover", "drop", "predict", "ps", "dps"):
        section = re.search(rf"^### `{name}`.*?(?=^##)", page, flags=re.S | re.M)
        assert section, name
        shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section[0], flags=re.M))
        method = methods.make(name, {})
        settings = {key: str(value).lower() for key, value in vars(method).items()}
        assert {key: value.strip("`") for key, value in shown.items()} == settings, name


def test_the_results_table_is_what_was_measured() -> None:
    """The README's table of results is the one that the rows of results/ make."""
    table = readme_table(list(read_rows()), "deit_tiny_patch16_224", 0.55)
    assert len(table.splitlines()) >= 7
    assert table in README


def test_the_walk_through_runs(tmp_path: Path) -> None:
    """docs/adding_a_way_to_slim.md: its two files and its test, put into a copy of the package, pass."""
    page = ROOT / "docs" / "adding_a_way_to_slim.md"
    files = re.findall(r"^`([\w/]+\.py)`\n\n```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    assert len(files) == 3
    shutil.copytree(Path(ps.__file__).parent, tmp_path / "src" / "patchslim")
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    test = next(name for name, _ in files if name.startswith("tests/"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_equation_leads_to_its_function() -> None:
    """docs/paper_to_code.md: the files it names exist and define what it names in them."""
    page = (ROOT / "docs" / "paper_to_code.md").read_text(encoding="utf-8")
    spans = [span for span in re.findall(r"`([^`]+)`", page) if re.match(r"[\w/]+(\.py|/)(: |$)", span)]
    assert len(spans) > 30
    for span in spans:
        name, _, functions = span.partition(": ")
        path = ROOT / "src" / "patchslim" / name
        assert path.exists(), span
        text = path.read_text(encoding="utf-8") if functions else ""
        for function in functions.split(", ") if functions else []:
            *_, last = function.split(".")
            assert re.search(rf"(def|class) {last}\b", text), span
