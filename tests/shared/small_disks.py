"""A file system of its own, of a size of its own, for tests that fill one. Gone even when pytest is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Waits until we close its input or die.
_JANITOR = "import subprocess, sys; sys.stdin.read(); subprocess.run(['umount', '--lazy', sys.argv[1]])"


@contextmanager
def small_disk(directory: Path, size_mib: int) -> Iterator[Path]:
    """Where it is mounted."""
    image, place = directory / "disk.ext4", directory / "disk"
    image.touch()
    os.truncate(image, size_mib << 20)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=4", image], check=True)
    place.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _JANITOR, str(place)], stdin=subprocess.PIPE, start_new_session=True
    ) as janitor:
        try:
            subprocess.run(["mount", "-o", "loop", image, place], check=True)
            yield place
        finally:
            assert janitor.stdin is not None
            janitor.stdin.close()
            janitor.wait(30)


def free_mib(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize >> 20


@contextmanager
def full_but_for(place: Path, left_mib: int) -> Iterator[None]:
    """Somebody else's file takes the rest for the time of the block."""
    filler = place / "filler"
    filler.touch()
    with filler.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, (free_mib(place) - left_mib) << 20)
    try:
        yield
    finally:
        filler.unlink()
