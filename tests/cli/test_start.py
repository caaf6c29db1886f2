"""The command line as processes: what it imports, and how it ends on signals, closed outputs and poor encodings."""

import json
import subprocess
import sys

from patchslim.cli.table import COMMANDS

COMMAND = [sys.executable, "-m", "patchslim"]
HEAVY = ("torch", "timm", "torchvision", "transformers", "numpy", "matplotlib", "sklearn")
# Runs several command lines in one process, and then tells what it has imported.
SEVERAL = """
import json, sys
from patchslim.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps([codes, sorted(sys.modules)]))
"""


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    asked = [["--help"], ["--version"], ["-h"], ["slimm"], ["slim"], ["slim", "test_vit", "--nonsense"]]
    asked += [["finetune", "a", "--data", "b", "--epochs", "many"], *([name, "--help"] for name in COMMANDS)]
    command = [sys.executable, "-c", SEVERAL, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, modules = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0, 0, 0, 2, 2, 2, 2] + [0] * len(COMMANDS)
    assert set(HEAVY) & set(modules) == set()
