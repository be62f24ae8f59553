"""Root file systems as tar archives, for kinds of machine that share the host's kernel. Pure.

The same entries give the same bytes: names are sorted, times are zero, root owns all.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable

from atoll.images.cpio import Entry, ordered


def archive(entries: Iterable[Entry]) -> bytes:
    """The whole archive. Directories that hold an entry and are not given are added."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in ordered(entries):
            tar.addfile(_member(entry), io.BytesIO(entry.data))
    return target.getvalue()


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.mode = stat.S_IMODE(entry.mode)
    if stat.S_ISDIR(entry.mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(entry.mode):
        member.type = tarfile.SYMTYPE
        member.linkname = entry.data.decode()
    else:
        member.size = len(entry.data)
    return member
