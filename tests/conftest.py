"""Fixtures for all test rooms."""

import pytest

from small import KINDS


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of small host in turn."""
    return str(request.param)
