"""`python -m benchmarks reliability`: what patchslim does with damaged files, sudden ends and odd command lines."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from typer import Option

from benchmarks.inputs import Out, say
from benchmarks.reliability import kills, lines, mutations
from benchmarks.reliability.campaign import Found, Part, import_all, in_parallel, one, run_part
from benchmarks.reliability.outcomes import FAILURES
from benchmarks.reliability.subjects import make
from benchmarks.rows import RESULTS, Row, about, keep
from patchslim.errors import PatchslimError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def reliability(
    mutated: Annotated[int, Option("--mutations", min=0, help="Files to damage.")] = 10_000,
    killed: Annotated[int, Option("--kills", min=0, help="Commands to end at random moments.")] = 1000,
    given: Annotated[int, Option("--commands", min=0, help="Command lines to give.")] = 2000,
    seed: Annotated[int, Option("--seed", help="Of everything that is drawn.")] = 0,
    jobs: Annotated[int, Option("--jobs", min=1, help="Processes.")] = len(os.sched_getaffinity(0)),
    failures: Annotated[Path, Option("--failures", help="Folder of what failed.")] = Path("failures"),
    of: Annotated[str | None, Option(metavar="A,B,…", help="Only these things and commands [all].")] = None,
    only: Annotated[str | None, Option(metavar="PART:N", help="This case alone, and say what came of it.")] = None,
    out: Out = RESULTS,
) -> None:
    """Damage files, end commands at random moments, and give odd command lines; count what becomes of it."""
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Libraries read these when they are first imported.
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], os.environ | ONE_THREAD)
    warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads; none of them is needed in a child
    torch.set_num_threads(1)
    import_all()
    work = Path(tempfile.mkdtemp(prefix="patchslim-reliability-"))
    among = [name.strip() for name in (of or "").split(",") if name.strip()]
    parts = [
        Part("mutations", partial(mutations.case, seed, among), mutated, partial(mutations.needed, seed, among)),
        Part("kills", partial(kills.case, seed, among), killed, partial(kills.needed, seed, among)),
        Part("commands", partial(lines.case, seed), given, lines.needed),
    ]
    try:
        if only is not None:
            again(only, parts, work, failures)
        else:
            campaign([part for part in parts if part.count], seed, work, jobs, failures, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def campaign(parts: Sequence[Part], seed: int, work: Path, jobs: int, failures: Path, out: Path) -> None:
    """All cases of all parts; rows as soon as a part is done."""
    wanted = dict.fromkeys(subject for part in parts for subject in part.needed(range(part.count)))
    in_parallel([partial(make, subject, work) for subject in wanted], jobs)
    for part in parts:
        start = time.monotonic()
        found = run_part(part, work, jobs, failures)
        tell(part, found, time.monotonic() - start, jobs)
        write_failures(part, found, failures)
        keep(rows(part, found, seed), out)


def again(which: str, parts: Sequence[Part], work: Path, failures: Path) -> None:
    """One case, as the campaign had it but for what time decides."""
    name, _, number = which.partition(":")
    part = next((part for part in parts if part.name == name), None)
    if part is None or not number.isdigit():
        raise PatchslimError(f"A case is named like mutations:17, of {', '.join(own.name for own in parts)}.")
    for subject in part.needed([int(number)]):
        make(subject, work)
    print(json.dumps(one(part, int(number), work, failures), indent=2))


def tell(part: Part, found: Sequence[Found], seconds: float, jobs: int) -> None:
    """How a part went, for who waits."""
    counts = Counter(own["outcome"] for own in found)
    failed = {name: count for name, count in counts.items() if name in FAILURES}
    rate = len(found) / max(seconds, 1e-9) / jobs
    say(f"{part.name}: {len(found)} cases in {seconds:.0f} s, {rate:.1f} a second and job")
    say(f"  {dict(counts.most_common())}; failures: {failed or 'none'}")


def write_failures(part: Part, found: Sequence[Found], folder: Path) -> None:
    """A line for every failure: enough to do it again."""
    failed = [own for own in found if own["outcome"] in FAILURES]
    if failed:
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(own) + "\n" for own in failed)
        (folder / f"{part.name}.jsonl").write_text(text, encoding="utf-8")


def rows(part: Part, found: Sequence[Found], seed: int) -> list[Row]:
    """A row for each group of cases, with the outcomes counted."""
    groups: dict[str, list[Found]] = defaultdict(list)
    for own in found:
        groups[own["group"]].append(own)
    shared = about(torch.device("cpu"))
    made = []
    for group, cases in sorted(groups.items()):
        counts = Counter(str(one["outcome"]) for one in cases)
        values = {"cases": float(len(cases))} | {name: float(count) for name, count in counts.items()}
        values["seconds"] = round(sum(one["whole_seconds"] for one in cases), 1)
        point = {"part": part.name, "group": group}
        row = Row(
            **shared, question="reliability", model="test_vit", method="host", seed=seed, point=point, values=values
        )
        made.append(row)
    return made
