"""Work beside the event loop: what may wait for a disk or for the kernel is done in threads. Runs what it is given.

Nothing goes on behind its caller's back. A caller that is cancelled gets its CancelledError when the work is over,
so that what it does next, such as undoing, does not meet a thread that is still at it.

Removals have threads of their own: a tree that takes minutes holds up a few others, and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from atoll.system import files
from atoll.system.removal import Stopped

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32
_REMOVERS = 4

_pool = ThreadPoolExecutor(_THREADS, "aside")
_removers = ThreadPoolExecutor(_REMOVERS, "removal")


async def run(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """What the function gives, run in a thread."""
    loop = asyncio.get_running_loop()
    return await whole(loop.run_in_executor(_pool, functools.partial(function, *args, **more)))


async def remove_tree(path: Path) -> None:
    """As `files.remove_tree`. Cancelled, it stops between two entries: what is left can be removed by another call."""
    stop = threading.Event()
    work = asyncio.get_running_loop().run_in_executor(_removers, files.remove_tree, path, stop.is_set)
    try:
        await whole(work, stop.set)
    except Stopped:  # only one who was cancelled stops it
        raise asyncio.CancelledError from None


async def whole(
    work: asyncio.Future[T] | Coroutine[Any, Any, T], on_cancel: Callable[[], None] = lambda: None
) -> T:
    """Wait for the end of some work, also when cancelled meanwhile; the cancellation goes on after it.

    An error of the work is the caller's before a cancellation is.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()
