"""Work of the event loop beside other work, which ends together. No effects of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def until_one_ends(*works: Awaitable[None]) -> None:
    """Run them beside each other until one is done, then end the others. A lost connection is an end too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            raise error
