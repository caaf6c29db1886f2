"""The command line as a whole: help, version, what replaced old names, and how mistakes end."""

import warnings
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

import patchslim as ps
from commands import SMALL, Run, ended_by_ctrl_c, refused
from patchslim.cli import opening, options
from patchslim.cli.app import app, open_command
from patchslim.cli.old import METHODS, OPTIONS
from patchslim.cli.table import COMMANDS
from patchslim.errors import PatchslimWarning
from patchslim.measure import SpeedConfig
from patchslim.methods import Task, names
from patchslim.recover import RecoverConfig
from patchslim.timing.modes import DTYPES, MODES

# What the command line had before methods were one list.
OLD_SLIM = (
    *("--select", "--removed", "--score", "--groups", "--mode", "--predictor", "--distance", "--choosing-blocks"),
    *("--step", "--tune-epochs", "--learning-rate", "--cache-gib", "--speed-batch-size", "--speed-dtype"),
    "--speed-mode",
)
OLD_COMPARE = ("--epochs", "--readout-only")
OLD_METHODS = ("ps-static", "ps-merge", "ps-predicted", "ps-predicted-drop", "ps-matched", "impact")


def test_help_and_version(run: Run) -> None:
    assert run("--version")[1].strip() == ps.__version__
    code, out, _ = run()
    assert code == 0
    assert out == run("--help")[1]
    assert {line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.strip()} >= set(COMMANDS)


def test_short_options_and_completion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("-h")[1] == run("--help")[1]
    assert run("slim", "-h")[1] == run("slim", "--help")[1]
    monkeypatch.setenv("_PATCHSLIM_COMPLETE", "complete_bash")
    for words, told in (("patchslim sl", "slim"), ("patchslim slim --target-m", "--target-macs")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert run()[1].split() == [told]


def test_the_list_says_of_commands_what_they_say_themselves() -> None:
    for name, own in COMMANDS.items():
        assert open_command(name).help == own.help
        assert own.resumes == ("--resume" in options_of(name))


def test_defaults_that_are_written_twice_agree() -> None:
    """Commands don't import what they need to know their defaults."""

    def usual(command: str) -> dict[str, Any]:
        return {own.name: own.default for own in open_command(command).params}

    config = RecoverConfig().as_dict()
    shared = usual("finetune").keys() & config.keys()
    assert len(shared) == 10
    assert {name: usual("finetune")[name] for name in shared} == {name: config[name] for name in shared}
    compare = usual("compare")
    assert SpeedConfig(compare["bench_batch_size"], compare["dtype"], (compare["mode"],), compare["seconds"]) == (
        SpeedConfig()
    )
    assert usual("slim")["memory"] == Task.memory_gib
    assert (", ".join(MODES), ", ".join(DTYPES)) == (options.MODES, options.DTYPES)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_a_help_that_fits(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"}, terminal_width=120)
    assert shown.exit_code == 0
    assert "--json" in shown.stdout
    assert len(shown.stdout.splitlines()) <= 50
    assert max(map(len, shown.stdout.splitlines())) <= 120


def options_of(command: str) -> set[str]:
    """What a command takes."""
    return {option for own in open_command(command).params for option in own.opts if option.startswith("--")}


@pytest.mark.parametrize(("command", "options"), [("slim", OLD_SLIM), ("compare", OLD_COMPARE)])
def test_every_old_option_says_what_replaced_it(run: Run, command: str, options: tuple[str, ...]) -> None:
    assert set(options) == OPTIONS[command].keys()
    assert not options_of(command) & set(options)
    for option in options:
        refused(
            run(command, *SMALL, option, "5"),
            f"The option {option} of `{command}` is gone: {OPTIONS[command][option]}.",
        )


def test_what_replaces_an_old_name_is_there(run: Run) -> None:
    """Methods, settings and options that the sentences advise."""
    known = {method: ps.methods.settings_of(method).keys() for method in names()}
    for text in [*OPTIONS["slim"].values(), *OPTIONS["compare"].values()]:
        words = [word.strip(",;") for word in text.split()]
        for option, value in pairwise([*words, ""]):
            if option == "--method":
                assert value in known
            if option == "--set":
                assert any(value.split("=")[0].split(".")[-1] in settings for settings in known.values())
            if option.startswith("--"):
                assert option in options_of("slim") | options_of("compare")
    assert set(OLD_METHODS) == METHODS.keys()
    for old, new in METHODS.items():
        assert old not in known
        refused(run("compare", *SMALL, "--val", "digits", "--target-macs", "0.7", "--methods", f"drop,{old}"), new)
        refused(run("slim", *SMALL, "--method", old), f"The method {old} has another name now: {new}.")
        method, _, setting = new.partition(" with --set ")
        if setting:
            key, value = setting.removeprefix(f"{method}.").split("=")
            assert ps.methods.make(method, {key: value})
        else:
            assert method in known


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("slim",), "Missing argument 'MODEL'"),
        (("slim", "test_vit"), "Missing option '--data'"),
        (("slimm",), "No such command 'slimm'"),
        (("slim", *SMALL, "--nonsense"), "No such option: --nonsense"),
        (("eval", "--mode", "x"), "No such option: --mode"),  # gone from slim, and never here
        (("methods", "a", "b"), "extra argument"),
    ],
)
def test_mistyped_commands_end_in_one_sentence(run: Run, words: tuple[str, ...], told: str) -> None:
    refused(run(*words), told)
    assert run(*words)[2].count("\n") == 1


def test_files_that_fail_are_told_and_bugs_are_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: BaseException) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise error

        return fail

    monkeypatch.setattr(opening, "open_model", failing(OSError(5, "Input/output error", "weights.bin")))
    refused(run("inspect", "test_vit"), "A file can't be read or written (Input/output error: weights.bin)")
    monkeypatch.setattr(opening, "open_model", failing(KeyboardInterrupt()))
    ended_by_ctrl_c(run("inspect", "test_vit"))
    monkeypatch.setattr(opening, "open_model", failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        run("inspect", "test_vit")


def test_a_warning_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: Any, **__: Any) -> Any:
        warnings.warn("One thing to know.", PatchslimWarning, stacklevel=2)
        raise ps.PatchslimError("And it ends.")

    monkeypatch.setattr(opening, "open_model", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, _, err = run("inspect", "test_vit")
    assert err.splitlines() == ["One thing to know.", "patchslim: And it ends."]
