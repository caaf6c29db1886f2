"""The commands by name, so that they can be listed without importing any: each has a module that loads when it runs."""

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command's function is, what it does in a line (its docstring), and whether it has --resume."""

    module: str
    function: str
    help: str
    resumes: bool = False


COMMANDS = {
    "demo": Command(
        "demo", "demo", "Slim the bundled digits model in two ways: search, measure, draw. Needs no data and no GPU."
    ),
    "methods": Command(
        "methods", "list_methods", "List the methods: what each does, when to take it, its settings and their defaults."
    ),
    "inspect": Command(
        "inspect",
        "inspect_model",
        "Tell a model's depth, width, heads, tokens, readout and MACs, and whether it can be slimmed.",
    ),
    "slim": Command(
        "slim",
        "slim",
        "Make a faster model from a pretrained one and a few hundred images. No labels are needed.",
        resumes=True,
    ),
    "finetune": Command(
        "finetune",
        "finetune",
        "Give a slim model its accuracy back: it learns from the network it was made from. No labels are needed.",
        resumes=True,
    ),
    "eval": Command(
        "evaluate",
        "evaluate_model",
        "Measure top-1 and top-5 accuracy on labelled images, and the MACs per image.",
    ),
    "bench": Command(
        "bench",
        "bench",
        "Time the slim model and its host side by side, and compare with what the MACs and the plan promise.",
    ),
    "export": Command(
        "export",
        "export_run",
        "Write a run as ONNX, torch.export or OpenVINO, and check that the file gives the model's own answers.",
    ),
    "compare": Command(
        "compare",
        "compare_methods",
        "Compare ways to slim a model at equal MACs: top-1 before and after one and the same recovery, and throughput.",
        resumes=True,
    ),
    "report": Command(
        "report",
        "report_runs",
        "Write a page about runs: MACs, patches per block, accuracy and speed where they were measured, pictures.",
    ),
    "view": Command(
        "view",
        "view",
        "Draw the tokens that each block computes over some images, each in the mean colour of its patches.",
    ),
    "verify": Command(
        "verify", "verify", "Say which files of a run, or of each run of a sweep, are as they were written."
    ),
    "seal": Command(
        "seal",
        "seal_run",
        "Take the files of a run, or of a sweep's runs, as they are now, if they make a model. For edits by hand.",
    ),
}
