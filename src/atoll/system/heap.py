"""The memory of this process: what is free of it goes back to the host. Calls the C library.

Its allocator keeps pages that are free for whoever needs some next. After many callers at once that is nobody, and
they lie between others that are in use, so that they are never given back by themselves.
"""

from __future__ import annotations

import asyncio
import ctypes

EVERY_S = 5.0

# Not in every C library.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


async def keep_small() -> None:
    """For ever: give back what is free."""
    while True:
        await asyncio.sleep(EVERY_S)
        await asyncio.to_thread(give_back)


def give_back() -> None:
    """Every page of the heap that nothing is on: 0.1 ms where there is none, 2 ms for 25 MiB."""
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))
