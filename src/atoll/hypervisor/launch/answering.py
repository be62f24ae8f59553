"""Whether a guest answers at one of its ports. Effects: TCP connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

ATTEMPT_S = 0.25
CONVERSE_S = 1.0

Answers = Callable[[str, int], Awaitable[bool]]
"""Whether something takes connections at this IP and port."""


async def answers(ip: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ATTEMPT_S):
            _, writer = await asyncio.open_connection(ip, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def converse(ip: str, port: int) -> bool:
    """Whether something answers there, asked as a browser would."""
    try:
        async with asyncio.timeout(CONVERSE_S):
            reader, writer = await asyncio.open_connection(ip, port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            answered = await reader.read(1)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return bool(answered)
