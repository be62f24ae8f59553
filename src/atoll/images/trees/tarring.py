"""Entries and objects as a tar archive, in a stream. Pure, but for whoever fetches the objects.

The same tree gives the same bytes. mke2fs (1.47.1 and later), LXC, Docker and OCI tools take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atoll.errors import HostFailure
from atoll.images.trees import tar_format
from atoll.images.trees.tar_format import Member
from atoll.images.trees.unpacking import Fetch
from atoll.model.tree import (
    PIECE_BYTES,
    ROOT,
    BlockDevice,
    CharacterDevice,
    Content,
    Directory,
    Entry,
    Fifo,
    File,
    HardLink,
    Piece,
    Symlink,
    check_tree,
    pieces_of,
)

_ZEROS = bytes(PIECE_BYTES)
_FILL = 10240
"""An archive is a multiple of this, as tar makes it."""


def tar_stream(entries: Sequence[Entry], fetch: Fetch) -> Iterator[bytes]:
    """The archive, in parts of PIECE_BYTES at most. Holes become zeros: readers of tar agree on nothing else."""
    check_tree(entries)
    data = fetch(piece.id for piece in pieces_of(entries))
    total = 0
    for part in _parts(entries, data):
        total += len(part)
        yield part
    yield bytes(-total % _FILL)


def _parts(entries: Sequence[Entry], data: Iterator[bytes]) -> Iterator[bytes]:
    for entry in entries:
        yield tar_format.build(_member(entry))
        if isinstance(entry, File):
            yield from _bytes(entry.content, data)
            yield bytes(tar_format.padded(entry.content.size) - entry.content.size)
    yield tar_format.end()


def _bytes(content: Content, data: Iterator[bytes]) -> Iterator[bytes]:
    for part in content.parts:
        if isinstance(part, Piece):
            found = next(data)
            if len(found) != part.size:
                raise HostFailure(f"object {part.id} has {len(found)} bytes, and its image says {part.size}")
            yield found
            continue
        left = part.size
        while left:
            yield _ZEROS[: min(left, PIECE_BYTES)]
            left -= min(left, PIECE_BYTES)


def _member(entry: Entry) -> Member:
    name = f"./{entry.path}" if entry.path != ROOT else "."
    if isinstance(entry, HardLink):
        return Member(type=tar_format.LINK, name=name.encode(), target=f"./{entry.to}".encode(), mode=0o644)
    kind, target, size, device = tar_format.FIFO, "", 0, (0, 0)
    match entry:
        case File():
            kind, size = tar_format.REGULAR, entry.content.size
        case Directory():
            kind, name = tar_format.DIRECTORY, f"{name}/"
        case Symlink():
            kind, target = tar_format.SYMLINK, entry.target
        case CharacterDevice():
            kind, device = tar_format.CHARACTER, (entry.major, entry.minor)
        case BlockDevice():
            kind, device = tar_format.BLOCK_DEVICE, (entry.major, entry.minor)
        case Fifo():
            pass
    return Member(
        type=kind,
        name=name.encode(),
        target=target.encode(),
        size=size,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        major=device[0],
        minor=device[1],
        xattrs=entry.xattrs,
    )
