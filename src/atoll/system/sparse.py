"""Files whose beginning is given back while somebody appends to them. Frees blocks of open files."""

from __future__ import annotations

import ctypes
import errno
import os

BLOCK = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def release(descriptor: int, length: int) -> bool:
    """Give back the first `length` bytes, a multiple of BLOCK; all others stay where they are.

    They read as zeros from then on. False where the file system cannot do it; the file is as it was then.
    """
    if length <= 0 or _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, length) == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))


def first_kept(descriptor: int, start: int = 0) -> int:
    """Where what was not given back begins, at `start` or behind it; at the end when there is nothing."""
    size = os.fstat(descriptor).st_size  # before we look: what is added meanwhile is behind it
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return max(start, size)
