"""A tar archive, compressed or not, as entries and objects. Reads a stream from its start to its end; makes nothing.

What comes in is not trusted. Nothing of it is ever unpacked here, so nothing in it can lead anywhere; but what would
lead out of a tree, or be two things at once, is refused by its name, before anybody else meets it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from atoll.errors import Invalid, Malformed, TooLarge
from atoll.images.cutting import Take, cut
from atoll.images.trees import tar_format
from atoll.images.trees.compression import Plain, Readable
from atoll.images.trees.layers import Layer, tree_of
from atoll.images.trees.tar_format import Member
from atoll.model.tree import (
    LARGEST_TREE,
    MOST_ENTRIES,
    PIECE_BYTES,
    ROOT,
    BlockDevice,
    CharacterDevice,
    Directory,
    Entry,
    Facts,
    Fifo,
    File,
    Inode,
    Symlink,
    check_tree_path,
    is_kept_xattr,
    parent_of,
    weight_of,
)

_HINT = "make the archive anew, with names below one directory: tar -C DIRECTORY -c ."


class Limits(Struct, frozen=True):
    """What an archive may be."""

    devices: bool = False
    """It may have device nodes. Who unpacks them gives their guest what they stand for."""
    most_bytes: int = 64 << 30
    most_entries: int = MOST_ENTRIES


def read_archive(stream: Readable, take: Take, limits: Limits | None = None) -> tuple[Entry, ...]:
    """The tree that an archive holds. Directories that it leaves out are root's, with mode 0755."""
    return read_layer(stream, take, limits).tree


def read_layer(stream: Readable, take: Take, limits: Limits | None = None) -> Layer:
    """The same, with what must be known of it where it is one layer of several."""
    return _Reading(stream, take, limits or Limits()).run()


class _Reading:
    def __init__(self, stream: Readable, take: Take, limits: Limits) -> None:
        self._plain = Plain(stream, limits.most_bytes)
        self._take = take
        self._limits = limits
        self._found: dict[str, Inode] = {}
        """What is at each path; one that has several is the same value at all of them."""
        self._weight = 0

    def run(self) -> Layer:
        for member in self._members():
            self._add(member)
        implied = self._add_directories()
        return Layer(tree_of(self._found), implied)

    # --- headers

    def _members(self) -> Iterator[Member]:
        extra: dict[str, bytes] = {}
        left = tar_format.LONGEST_EXTRA
        while True:
            block = self._plain.read(tar_format.BLOCK)
            if len(block) < tar_format.BLOCK:
                raise Malformed("reading an archive: it is cut short", hint="fetch it again")
            if not block.strip(b"\0"):
                return
            member = tar_format.parse(block)
            if member.type not in tar_format.EXTRA:
                yield self._whole(member, extra)
                extra, left = {}, tar_format.LONGEST_EXTRA
                continue
            left -= member.size
            if left < 0:
                raise TooLarge(
                    f"reading an archive: headers of more than {tar_format.LONGEST_EXTRA} bytes", hint=_HINT
                )
            data = self._data(member.size)
            if member.type == tar_format.RECORDS:
                extra |= tar_format.parse_records(data)
            elif member.type != tar_format.GLOBAL_RECORDS:  # these are a comment of the program that made it
                key = "path" if member.type == tar_format.LONG_NAME else "linkpath"
                extra.setdefault(key, data.partition(b"\0")[0])

    def _whole(self, member: Member, extra: dict[str, bytes]) -> Member:
        if member.type == tar_format.GNU_SPARSE or any(key.startswith(tar_format.SPARSE) for key in extra):
            hint = "make the archive without --sparse: zeros are found again"
            raise Invalid("archive", _shown(extra.get("path", member.name)), "is a sparse file", hint=hint)
        return tar_format.with_records(member, extra) if extra else member

    def _data(self, size: int) -> bytes:
        data = self._plain.read(tar_format.padded(size))
        if len(data) < size:
            raise Malformed("reading an archive: it is cut short", hint="fetch it again")
        return data[:size]

    # --- entries

    def _add(self, member: Member) -> None:
        path = _path(member.name)
        if path in self._found:
            raise Invalid("archive", path, "is in it twice", hint=_HINT)
        if len(self._found) >= self._limits.most_entries:
            raise TooLarge(f"reading an archive: more than {self._limits.most_entries} entries")
        inode = self._linked(path, member) if member.type == tar_format.LINK else self._inode(path, member)
        self._found[path] = inode
        self._weight += weight_of(inode) + len(path)
        if self._weight > LARGEST_TREE:
            raise TooLarge(
                f"reading an archive: its names and attributes have more than {LARGEST_TREE} bytes"
            )

    def _linked(self, path: str, member: Member) -> Inode:
        target = _path(member.target)
        if member.size:
            raise Invalid("archive", path, "is a hard link with a content of its own", hint=_HINT)
        inode = self._found.get(target)
        if inode is None or isinstance(inode, Directory):
            raise Invalid(
                "archive", path, f"is a hard link to {target!r}, which is no file before it", hint=_HINT
            )
        return inode

    def _inode(self, path: str, member: Member) -> Inode:
        facts = Facts(mode=member.mode, uid=member.uid, gid=member.gid, mtime_ns=member.mtime_ns)
        xattrs = {name: value for name, value in member.xattrs.items() if is_kept_xattr(name)}
        match member.type:
            case tar_format.REGULAR | tar_format.OLD_REGULAR | tar_format.CONTIGUOUS:
                if member.type == tar_format.OLD_REGULAR and member.name.endswith(b"/"):
                    return Directory(path=path, xattrs=xattrs, **facts)
                content = cut(member.size, self._windows(member.size), self._take)
                return File(path=path, content=content, xattrs=xattrs, **facts)
            case tar_format.DIRECTORY:
                return Directory(path=path, xattrs=xattrs, **facts)
            case tar_format.SYMLINK:
                facts["mode"] = 0o777
                return Symlink(path=path, target=_text("target", member.target), **facts)
            case tar_format.FIFO:
                return Fifo(path=path, **facts)
            case tar_format.CHARACTER | tar_format.BLOCK_DEVICE:
                if not self._limits.devices:
                    hint = "leave it out: guests make their own devices"
                    raise Invalid("archive", path, "is a device node", hint=hint)
                device = CharacterDevice if member.type == tar_format.CHARACTER else BlockDevice
                return device(path=path, major=member.major, minor=member.minor, **facts)
        raise Invalid("archive", path, f"is of a kind that is not known here: {member.type!r}", hint=_HINT)

    def _windows(self, size: int) -> Iterator[bytes]:
        if size > self._limits.most_bytes:
            raise TooLarge(f"reading an archive: a file of {size} bytes")
        while size > 0:
            window = min(size, PIECE_BYTES)
            yield self._data(window)
            size -= window

    # --- what makes a tree of them

    def _add_directories(self) -> frozenset[str]:
        """Those that are left out; which they are."""
        implied = set() if ROOT in self._found else {ROOT}
        for path in list(self._found):
            while (path := parent_of(path)) not in self._found and path not in implied:
                implied.add(path)
        self._found |= {path: Directory(path=path, mode=0o755) for path in implied}
        return frozenset(implied)


def _path(name: bytes) -> str:
    """A name of the archive as a path of a tree; refused when it would lead out of it."""
    text = _text("name", name)
    if text.startswith("/"):
        raise Invalid("archive", text, "is an absolute name", hint=_HINT)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Invalid("archive", text, "leads out of the tree", hint=_HINT)
    return check_tree_path("/".join(parts) or ROOT, "archive")


def _text(what: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid("archive", _shown(raw), f"has a {what} that is no UTF-8", hint="rename it") from None


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
