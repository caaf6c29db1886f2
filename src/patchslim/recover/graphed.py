"""A training step recorded once and replayed: on a GPU a small network's step is bound by the launching of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

WARM_UP = 3  # steps before the recording, in which libraries set themselves up


class Graphed:
    """The loss of a batch and its gradients, as a CUDA graph of one batch shape.

    What it computes has to be the same kernels for every batch: no choice made on the host, no waiting for the device.
    """

    def __init__(
        self, backward: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], images: Tensor
    ) -> None:
        """`backward` maps images to a loss whose gradients it has added to the parameters'."""
        self.parameters, self.images = parameters, images.clone()
        with torch.cuda.device(images.device):
            self._warm_up(backward)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = backward(self.images)
        self.gradients = [parameter.grad for parameter in parameters]

    def _warm_up(self, backward: Callable[[Tensor], Tensor]) -> None:
        """Run beside the stream at work, as recordings want it; leaves no gradients, so that the recording makes its
        own, which each replay writes over."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                _forget(self.parameters)
                backward(self.images)
        torch.cuda.current_stream().wait_stream(beside)
        _forget(self.parameters)

    def fits(self, images: Tensor) -> bool:
        """Whether a batch has the recorded shape."""
        return images.shape == self.images.shape

    def __call__(self, images: Tensor) -> Tensor:
        """The loss; the gradients are where an optimiser looks for them."""
        self.images.copy_(images)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.graph.replay()
        return self.loss.clone()


def _forget(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
