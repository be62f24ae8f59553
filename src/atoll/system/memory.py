"""Files in memory that many may copy, and nobody can change any more. Makes memfds, saves and loads them.

A sealed one can be opened for writing, which some programs insist on, and mapped privately, but neither
written nor mapped to be changed: not even by its owner.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from atoll.system.failures import failing
from atoll.system.files import new_file

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_CHUNK = 8 << 20


def create(name: str, size: int) -> int:
    """A descriptor of an empty file of this size that uses no memory yet."""
    with failing(f"making a file in memory for {name}"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def seal(descriptor: int) -> None:
    """From now on it cannot be changed. Refused while somebody has it mapped for shared writing."""
    with failing("sealing a file in memory"):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)


def create_fixed(name: str, size: int) -> int:
    """The same, which can be written to and never becomes larger: what is written behind its end is lost."""
    descriptor = create(name, size)
    with failing(f"making a file in memory for {name}"):
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        )
    return descriptor


def save(descriptor: int, path: Path) -> None:
    """Write it to disk, holes as holes, for good."""
    with failing(f"writing {path}"), new_file(path) as file:
        os.truncate(file.fileno(), os.fstat(descriptor).st_size)
        _copy(descriptor, file.fileno())
        os.fsync(file.fileno())


def load(name: str, path: Path) -> int:
    """What `save` wrote, in memory again and sealed."""
    with failing(f"reading {path}"), path.open("rb") as file:
        descriptor = create(name, os.fstat(file.fileno()).st_size)
        try:
            _copy(file.fileno(), descriptor)
            # It is in memory now; the cached pages of the file would be a second copy.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            seal(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _copy(source: int, target: int) -> None:
    end = 0
    while (begin := _next_data(source, end)) is not None:
        end = os.lseek(source, begin, os.SEEK_HOLE)
        os.lseek(target, begin, os.SEEK_SET)
        while begin < end:
            begin += os.sendfile(target, source, begin, min(end - begin, _CHUNK))


def _next_data(descriptor: int, after: int) -> int | None:
    try:
        return os.lseek(descriptor, after, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # none from there on
            return None
        raise
