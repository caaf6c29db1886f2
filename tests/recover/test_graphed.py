"""A recorded step gives what the step itself gives. Needs a GPU."""

import pytest
import torch
from torch import Tensor, nn

from patchslim.recover.train import Graphed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def test_loss_and_gradients_are_those_of_the_step_itself() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.GELU(), nn.Linear(5, 3)).cuda()
    learning = list(model.parameters())

    def backward(images: Tensor) -> Tensor:
        loss: Tensor = model(images).square().mean()
        loss.backward()
        return loss.detach()

    graphed = Graphed(backward, learning, torch.rand(4, 3, 2, 2, device="cuda"))
    for _ in range(2):
        images = torch.rand(4, 3, 2, 2, device="cuda")
        loss, gradients = (
            graphed(images),
            [parameter.grad.clone() for parameter in learning if parameter.grad is not None],
        )
        model.zero_grad()
        assert torch.allclose(backward(images), loss)
        assert all(torch.allclose(p.grad, g) for p, g in zip(learning, gradients, strict=True) if p.grad is not None)
    assert not graphed.fits(torch.rand(3, 3, 2, 2, device="cuda"))
