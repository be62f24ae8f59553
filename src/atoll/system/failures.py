"""What the operating system refuses, told as an error that a user can act on. Pure."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from atoll.errors import HostFailure

_HINTS = {
    errno.EACCES: "run as root",
    errno.EDQUOT: "make room on that file system",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENOSPC: "make room on that file system",
    errno.EPERM: "run as root",
    errno.EROFS: "choose a directory on a file system that can be written to",
}


@contextlib.contextmanager
def failing(doing: str) -> Iterator[None]:
    """Turns an OSError into a HostFailure that says what was being done."""
    try:
        yield
    except OSError as error:
        said = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise HostFailure(f"{doing}: {said}", hint=_HINTS.get(error.errno or 0, "")) from error


@contextlib.contextmanager
def ignoring(*numbers: int) -> Iterator[None]:
    """Lets some kinds of OSError pass: what was to be done is done already."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise
