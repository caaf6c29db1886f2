"""Fixtures for all test rooms."""

import pytest
import torch

from small import KINDS

# Networks here are so small that a second thread costs more than it brings.
torch.set_num_threads(1)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of small host in turn."""
    return str(request.param)
