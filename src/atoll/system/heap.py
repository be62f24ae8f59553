"""The memory of this process: what is free of it goes back to the host. Calls the C library.

Its allocator keeps pages that are free for whoever needs some next. After many callers at once that is nobody, and
they lie between others that are in use, so that they are never given back by themselves.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

LOOK_EVERY_S = 5.0
SLACK_MIB = 4
"""So much more than after the last time is worth looking for free pages."""

# Not in every C library.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


async def keep_small() -> None:
    """For ever: give back what is free, when much has come since the last time."""
    least_mib = resident_mib()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if resident_mib() > least_mib + SLACK_MIB:
            await asyncio.to_thread(give_back)
            least_mib = resident_mib()


def give_back() -> None:
    """Every page of the heap that nothing is on. Waits for none of it; who allocates meanwhile may."""
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))


def resident_mib() -> float:
    """What this process has of the host's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
