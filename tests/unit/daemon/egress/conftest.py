"""The world of the proxy's tests."""

from collections.abc import AsyncIterator

import pytest

from .world import World, new_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A world without hosts."""
    async with new_world() as one:
        yield one
