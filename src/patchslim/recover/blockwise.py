"""Block-wise reconstruction: block after block learns to give what the host's block gave, from the tokens that the
slim network really has there. The host's features are the target, so no labels are needed, and each block is small."""

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.data.items import choose
from patchslim.events import Listener
from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.plan import SlimPlan
from patchslim.recover.config import RecoverConfig
from patchslim.recover.images import Parts
from patchslim.recover.learning import choose_learning_, two_rates
from patchslim.recover.networks import pair_rows, through
from patchslim.slimmed import State

STAGE = "blocks"

Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
# What enters the next block: of the slim network, and Z_l of the host (B, p + N, d).
Pair = tuple[Tensor | State, Tensor]


class Streams:
    """What enters block `layer` + 1 of both networks, in batches of one fixed composition; `advance` goes on by one
    block. Cached within a bound on memory and computed again past it."""

    def __init__(self, student: Host, teacher: Host, batches: Batches, config: RecoverConfig) -> None:
        self.student, self.teacher, self.batches, self.config = student, teacher, batches, config
        self.device = next(student.model.parameters()).device
        self.layer = 0
        self.stored: list[Pair] = []
        used, self.whole = 0, True
        for images, _ in batches():
            pair = self._start(images)
            batch, tokens, width = pair[1].shape
            used += (2 * 4 * width + tokens) * batch * tokens  # in bytes; where images choose, the sources come to it
            if used > config.cache_gib * 2**30:
                self.whole = False
                break
            self.stored.append(pair)

    def advance(self) -> None:
        """Go through the next block, as it is now."""
        self.stored = [self._through(pair, self.layer) for pair in self.stored]
        self.layer += 1

    def __iter__(self) -> Iterator[Pair]:
        yield from self.stored
        if self.whole:
            return
        for images, _ in islice(self.batches(), len(self.stored), None):
            pair = self._start(images)
            for layer in range(self.layer):
                pair = self._through(pair, layer)
            yield pair

    @torch.no_grad()
    def _start(self, images: Tensor) -> Pair:
        images = images.to(self.device)
        with self.config.autocast(self.device):
            return self.student.embed(images).float(), self.teacher.embed(images).float()

    @torch.no_grad()
    def _through(self, pair: Pair, layer: int) -> Pair:
        with self.config.autocast(self.device):
            _, x = through(self.student.blocks[layer], pair[0], tracks=True)
            return x, self.teacher.blocks[layer](pair[1], None)


class Blockwise:
    """Tunes the blocks of one slim network, first to last, each on what the tuned ones before it give."""

    def __init__(self, student: Host, teacher: Host, plan: SlimPlan, config: RecoverConfig) -> None:
        self.student, self.teacher, self.plan, self.config = student, teacher, plan, config
        self.device = next(student.model.parameters()).device
        choose_learning_(student, classifier=False)

    def run_(
        self, parts: Parts, listen: Listener, begin: list[dict[str, Any]], save: Callable[[list[dict[str, Any]]], None]
    ) -> list[dict[str, Any]]:
        """Tune all blocks that `begin` does not have yet; per block the error on held-out images before and after."""
        size, found = self.config.block_batch_size, list(begin)
        few = parts.training.subset(choose(len(parts.training), self.config.block_images, self.config.seed))
        training, held_out = (
            Streams(self.student, self.teacher, batches, self.config)
            for batches in (lambda: few.batches(size), parts.held_out_batches)
        )
        depth = self.student.info.depth
        for layer in range(1, depth + 1):
            if layer > len(begin):
                found.append(self._tune_(layer, training, held_out))
                listen({"event": "reconstructed", "stage": STAGE} | found[-1])
                save(found)
            listen({"event": "step", "stage": STAGE, "done": layer, "total": depth})
            if layer < depth:
                training.advance()
                held_out.advance()
        return found

    def _tune_(self, layer: int, training: Streams, held_out: Streams) -> dict[str, Any]:
        """One block, never for the worse: it stays as it was unless the error on held-out images fell."""
        block = self.student.blocks[layer - 1]
        start, before = copy.deepcopy(block.state_dict()), self._error(layer, held_out)
        learning = [parameter for parameter in block.parameters() if parameter.requires_grad]
        groups = two_rates(learning, self.config.block_learning_rate, self.config.vector_factor)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        for _ in range(self.config.block_epochs):
            for pair in training:
                self._step_(layer, pair, optimizer, learning)
        self.student.model.zero_grad(set_to_none=True)
        after = self._error(layer, held_out)
        better = after < before
        if not better:
            block.load_state_dict(start)
        return {"block": layer, "before": before, "after": after if better else before, "kept": better}

    def _step_(self, layer: int, pair: Pair, optimizer: torch.optim.Optimizer, learning: list[nn.Parameter]) -> None:
        with self.config.autocast(self.device):
            loss = self._errors(layer, pair).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learning, self.config.clip)
        optimizer.step()

    @torch.no_grad()
    def _error(self, layer: int, pairs: Iterable[Pair]) -> float:
        """The mean over images."""
        errors = []
        for pair in pairs:
            with self.config.autocast(self.device):
                errors.append(self._errors(layer, pair).double().cpu())
        return float(torch.cat(errors).mean())

    def _errors(self, layer: int, pair: Pair) -> Tensor:
        """Relative error of block `layer` per image (B,): of the rows it computes, of the last what the head reads."""
        output, read = through(self.student.blocks[layer - 1], pair[0], tracks=True)
        with torch.no_grad():
            target = self.teacher.blocks[layer - 1](pair[1], None)
        if layer < self.student.info.depth:
            return relative_error(*pair_rows(self.plan, layer, output, target))
        with torch.no_grad():
            wanted = self.teacher.features(target)
        return relative_error(self.student.features(read), wanted)
