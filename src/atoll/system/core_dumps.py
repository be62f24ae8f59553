"""No core dumps of this process: its memory holds keys. Touches the kernel's flags of the process."""

from __future__ import annotations

import ctypes
import os

from atoll.errors import HostFailure

_PR_SET_DUMPABLE = 4


def forbid() -> None:
    """Until it ends, or becomes another program: what it starts is as dumpable as ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, *(ctypes.c_ulong(0),) * 4):
        raise HostFailure(f"forbidding core dumps: {os.strerror(ctypes.get_errno())}")
