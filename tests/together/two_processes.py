"""Two processes train one slim model with torch's DistributedDataParallel: `python two_processes.py FOLDER`.

Each of them leaves the weights it has in the end. They are forked when all is imported and nothing has run yet.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from small import make_host
from together.alike import slimmed, step

WAYS = ("", "drop", "merge", "predict merging", "threshold")


def train(rank: int, folder: Path) -> None:
    """Two steps of every model, each process with its own images."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    for way in WAYS:
        for model in [slimmed(make_host(), way)] + ([] if way else [make_host()]):
            both = DistributedDataParallel(model.train())
            optimiser = torch.optim.SGD([own for own in both.parameters() if own.requires_grad], 0.01)
            for number in range(2):
                step(both, seed=10 * number + rank)
                optimiser.step()
            kind = "host" if not hasattr(model, "plan") else way or "everything"
            torch.save(model.state_dict(), folder / f"{kind} {rank}.pt")
    dist.destroy_process_group()


def main() -> int:
    """0 when both came to the end."""
    torch.set_num_threads(1)
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            try:
                train(rank, Path(sys.argv[1]))
            except BaseException as error:
                print(f"process {rank}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
