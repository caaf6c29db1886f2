"""Block-wise reconstruction: block after block learns to give what the host's block gave, from the tokens that the
slim network really has there. The host's features are the target, so no labels are needed, and each block is small."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from patchslim.data.sample import choose
from patchslim.events import Listener
from patchslim.evidence.network import relative_error
from patchslim.hosts import Host
from patchslim.plan import SlimPlan
from patchslim.recover.config import RecoverConfig
from patchslim.recover.groups import choose_learning_, two_rates
from patchslim.recover.outputs import through
from patchslim.recover.parts import Parts
from patchslim.recover.rows import Rows
from patchslim.recover.streams import Pair, Streams

STAGE = "blocks"


class Blockwise:
    """Tunes the blocks of one slim network, first to last, each on what the tuned ones before it give."""

    def __init__(self, student: Host, teacher: Host, plan: SlimPlan, config: RecoverConfig) -> None:
        self.student, self.teacher, self.config = student, teacher, config
        self.device = next(student.model.parameters()).device
        self.rows = Rows(plan)
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
            return relative_error(*self.rows.pair(layer, output, target))
        with torch.no_grad():
            wanted = self.teacher.features(target)
        return relative_error(self.student.features(read), wanted)
