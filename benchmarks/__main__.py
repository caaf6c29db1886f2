"""The runner: `python -m benchmarks NAME …`; without a name it lists the questions."""

from __future__ import annotations

import sys

import typer

from benchmarks import ablations, accuracy, gpu, models, search, speed, speedup, table, targets, training_speed
from benchmarks.export import accuracy as export_accuracy
from benchmarks.export import parity as export_parity
from benchmarks.export import speed as export_speed
from benchmarks.export import torchao
from benchmarks.figures import house, methods, throughput
from benchmarks.paper import commands
from benchmarks.paper.figures import command as paper_figures
from benchmarks.paper.published import TABLES
from benchmarks.peers import parity as peers_parity
from benchmarks.reliability import command as reliability
from benchmarks.train import digits, small
from patchslim.errors import PatchslimError


def app_of(what: str) -> typer.Typer:
    """An empty set of commands."""
    return typer.Typer(
        help=what, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True
    )


app = app_of("Measure patchslim: each command answers one question and writes rows to results/.")
app.command("accuracy")(accuracy.accuracy)
app.command("speed")(speed.speed)
app.command("search")(search.search)
app.command("ablations")(ablations.ablations)
app.command("speedup")(speedup.speedup)
app.command("training-speed")(training_speed.training_speed)
table.PAGES["targets"] = targets.targets
app.command("table")(table.table)
app.command("models")(models.models)
app.command("reliability")(reliability.reliability)

on_gpu = app_of("All that has to be seen on a GPU, in commands of at most nine minutes each.")
on_gpu.command("small")(gpu.small)
on_gpu.command("large")(gpu.large)
on_gpu.command("accuracy")(gpu.accuracy)
on_gpu.command("picture")(gpu.picture)
on_gpu.command("asked")(gpu.asked)
app.add_typer(on_gpu, name="gpu")

figures = app_of("Draw the pictures of the README and of docs/architecture.md.")
figures.command("house")(house.house)
figures.command("methods")(methods.methods)
figures.command("throughput")(throughput.throughput)
app.add_typer(figures, name="figures")

paper = app_of("The paper's tables, throughput and figures, measured and published side by side.")
for name in TABLES:
    paper.command(name)(commands.tables)
paper.command("throughput")(commands.throughput)
paper.command("figures")(paper_figures.figures)
app.add_typer(paper, name="paper")

others = app_of("ToMe's and EViT's own code beside ours.")
others.command("parity")(peers_parity.parity)
app.add_typer(others, name="peers")

files = app_of("Files that `patchslim export` writes, and layers that torchao quantises.")
files.command("parity")(export_parity.parity)
files.command("accuracy")(export_accuracy.accuracy)
files.command("speed")(export_speed.speed)
files.command("torchao")(torchao.torchao)
app.add_typer(files, name="export")

training = app_of("How networks were made that come with patchslim or that are slimmed for tests.")
training.command("digits")(digits.digits)
training.command("small")(small.small)
app.add_typer(training, name="train")


def main() -> None:
    """Run a benchmark; what a user may cause ends with one sentence and exit code 2."""
    try:
        app(prog_name="python -m benchmarks")
    except PatchslimError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
