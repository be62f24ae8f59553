"""A lock between processes that leaves no file behind: the name of an abstract Unix socket.

It is held within one network namespace, and free again when its holder ends, however it ends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.errors import TimedOut

_POLL_S = 0.02


@contextmanager
def mutex(name: str, timeout_s: float = 30.0) -> Iterator[None]:
    """Hold the name while the block runs; wait for whoever has it."""
    until = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        while True:
            try:
                holder.bind(f"\0{name}")
                break
            except OSError:
                if time.monotonic() > until:
                    raise TimedOut(f"waiting for {name}: somebody has held it for {timeout_s:g} s") from None
                time.sleep(_POLL_S)
        yield
