"""What the README and the docs print is real: commands parse, Python runs, files exist, numbers are in results/."""

import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
import timm
import torch

import patchslim as ps
from patchslim.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code(language: str) -> list[str]:
    """The README's code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_name_real_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(code("bash")).replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("patchslim ")]
    assert {words[1] for words in commands} >= {"inspect", "slim", "finetune", "eval", "bench"}
    for words in commands:
        app([words[1], "--help"], standalone_mode=False)
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--")), words


def test_make_targets_exist() -> None:
    for target in ("demo", "test"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "pip install" in done.stdout or "patchslim" in done.stdout or "pytest" in done.stdout


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's own code, on a small model and the digits."""
    blocks = code("python")
    assert len(blocks) == 4
    model = timm.create_model("digits_vit", pretrained=True).eval()
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: model)
    monkeypatch.chdir(tmp_path)
    small = "SearchConfig(tune_epochs=0, "
    scope: dict[str, object] = {}
    for block in blocks:
        block = block.replace("my_images/", "digits").replace("=256", "=16").replace("epochs=10", "epochs=1")
        exec(block.replace("SearchConfig(", small), scope)
    assert isinstance(scope["tokens"], list)
    slim = scope["slim"]
    assert isinstance(slim, torch.nn.Module)
    assert ps.count_macs(slim) < ps.count_macs(model)
    assert (tmp_path / "runs" / "deit_ti" / "plan.json").exists()


def measured(pattern: str, *names: str) -> set[tuple[str, ...]]:
    """(mode, MAC ratio, and some percentages) of all rows of raw files."""
    found = set()
    for path in (ROOT / "results").glob(pattern):
        for row in json.loads(path.read_text())["rows"]:
            numbers = (f"{row[name]:.2f}" for name in names)
            found.add((row["mode"], f"{row['target_macs']:g}", *numbers))
    return found


def test_the_accuracy_table_is_what_was_measured() -> None:
    """Every row of the README has all seeds of its raw files, before and after recovery."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    newer = ("distances_recovered_*.json", "default_recovery_*.json", "temperature_4_deit_*.json")
    for files in (*newer, "static_merge_*.json", "effect_draws_*.json", "random_draws_*.json"):
        own: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for mode, ratio, before, after in measured(files, "top1_before", "top1_after"):
            name = (
                f"{mode}, keys" if mode == "matched merge" and files != newer[0] else mode.removesuffix(", own groups")
            )
            own.setdefault((name, ratio), []).append((before, after))
        found = own | found  # a file before has the newer rows
    name, numbers = r"((?:matched|predicted|static) [a-z, ]*?)", r"([\d., ]+)"
    row = rf"^\| {name} \| −(\d\d) % \| {numbers} \| {numbers} \|.*--target-macs (0\.\d+)"
    shown = re.findall(row, README, flags=re.M)
    assert len(shown) == 8
    for mode, fewer, before, after, ratio in shown:
        assert int(fewer) == round(100 * (1 - float(ratio)))
        starts, ends = before.split(", "), after.split(", ")
        starts = starts * len(ends) if len(starts) == 1 else starts
        assert set(zip(starts, ends, strict=True)) == set(found[mode, ratio])


def test_the_tables_in_the_docs_are_the_raw_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    for name in ("mode_table", "rank_table", "threshold_table", "merge_table", "known_table"):
        tables[name]()
    for name in ("recovery_table", "long_table", "one_rate_table", "trust_table", "rate_table", "score_comparison"):
        tables[name]()
    for name in ("thousand_table", "thousand_comparison", "step_table", "cover_table"):
        tables[name]()
    for name in ("score_table", "tolerance_table", "stale_table", "speed_table"):
        tables[name]()
    runpy.run_path(str(ROOT / "benchmarks" / "export_tables.py"))["export_table"]()
    newer = runpy.run_path(str(ROOT / "benchmarks" / "temperature_tables.py"))
    for name in (
        "temperature_table",
        "settings_table",
        "plateau_table",
        "default_table",
        "draws_table",
        "joined_table",
    ):
        newer[name]()
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "decisions.md"))
    shown = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(shown) > 20
    assert [line for line in shown if line not in page] == []
