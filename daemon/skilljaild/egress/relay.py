"""Carries bytes that the proxy does not look into, in both directions, until both have ended."""

import asyncio

from skilljaild.egress.forward import plain_errors
from skilljaild.egress.tunnel import Tunnel
from skilljaild.egress.upstream import Upstream

__all__ = ["relay"]


async def relay(tunnel: Tunnel, upstream: Upstream, first: bytes) -> None:
    """`first`: what was read from the tunnel already. Each direction ends by itself.

    Raises OSError, TunnelClosed or BudgetUsedUp when one end breaks; then neither direction goes on.
    """
    with plain_errors():
        async with asyncio.TaskGroup() as group:
            group.create_task(_up(tunnel, upstream, first))
            await _down(tunnel, upstream)
    await upstream.close()


async def _up(tunnel: Tunnel, upstream: Upstream, first: bytes) -> None:
    await upstream.send(first)
    while data := await tunnel.read():
        await upstream.send(data)
    upstream.end()


async def _down(tunnel: Tunnel, upstream: Upstream) -> None:
    while data := await upstream.receive():
        await tunnel.write(data)
    await tunnel.end()
