"""What a root file system is made of: entries with their paths, and contents cut into objects. Pure values.

An object is at most PIECE_BYTES long and is named by its hash (BLAKE3), so a content is a list of pieces and holes.
How a content is cut depends on its bytes alone: the same bytes are the same objects, whoever has them.

A tree is sorted such that each directory is followed by what is in it, and begins with `.`, its root. So whoever goes
through it in order never meets a path before its directory, or a hard link before what it is a name of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeAlias, TypedDict

from msgspec import Meta, Struct

from atoll.errors import Invalid

PIECE_BYTES = 4 << 20
"""A file of up to this size is one object. Larger ones are cut so that transfers can be resumed."""
GRAIN_BYTES = 64 << 10
"""Zeros in a large content are holes from this size on."""

MOST_ENTRIES = 300_000
LARGEST_TREE = 64 << 20
"""Bytes of all entries together, as `weight_of` counts them."""
MOST_BYTES = 1 << 46
"""Of one content: 64 TiB."""
LONGEST_PATH = 4095
LONGEST_PART = 255
DEEPEST = 128
MOST_XATTRS = 32
LONGEST_XATTR = 64 << 10
"""Bytes of all extended attributes of an entry together, names included: what Linux takes for one."""

ROOT = "."
OBJECT_PATTERN = r"^[0-9a-f]{64}$"
ObjectId = Annotated[str, Meta(pattern=OBJECT_PATTERN, description="BLAKE3 of the bytes, in hexadecimal")]

_OBJECT = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?:(?!\.\.?(?:/|\Z))[^/\0]{1,255}(?:/(?!\Z)|\Z))+")
_XATTR = re.compile(
    r"user\.(?!overlay\.)[\x20-\x7e]{1,250}|security\.capability|system\.posix_acl_(?:access|default)"
)
_EARLIEST_NS = -(2**31) * 10**9
_LATEST_NS = 2**63 - 1


class Piece(Struct, frozen=True, array_like=True, tag="piece", gc=False):
    """A part of a content that is an object."""

    id: str
    size: int

    def __post_init__(self) -> None:
        check_object_id(self.id)
        if not 1 <= self.size <= PIECE_BYTES:
            raise Invalid("size", self.size, f"object {self.id} must have 1 to {PIECE_BYTES} bytes")


class Hole(Struct, frozen=True, array_like=True, tag="hole", gc=False):
    """A part of a content that is zeros, and takes no space."""

    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MOST_BYTES:
            raise Invalid("size", self.size, f"a hole must have 1 to {MOST_BYTES} bytes")


Part: TypeAlias = Piece | Hole


class Content(Struct, frozen=True, gc=False):
    """The bytes of a file."""

    size: int = 0
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.size != sum(part.size for part in self.parts):
            raise Invalid("size", self.size, "is not the sum of the parts")
        if self.size > MOST_BYTES:
            raise Invalid("size", self.size, f"must be at most {MOST_BYTES}")
        hole = False
        for part in self.parts:
            if hole and type(part) is Hole:
                raise Invalid("parts", part, "is a hole behind a hole: they are one")
            hole = type(part) is Hole

    def pieces(self) -> Iterator[Piece]:
        return (part for part in self.parts if isinstance(part, Piece))


class Facts(TypedDict):
    """What every inode has that is a number."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int


class Inode(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """What every entry has that is no second name of another one."""

    path: str
    mode: int
    """Permissions alone, without the kind of file."""
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: dict[str, bytes] = {}

    def __post_init__(self) -> None:
        check_tree_path(self.path)
        if not 0 <= self.mode <= 0o7777:
            raise Invalid("mode", self.mode, f"of {self.path!r} must be from 0 to 0o7777")
        if not (0 <= self.uid < 2**32 - 1 and 0 <= self.gid < 2**32 - 1):
            raise Invalid("owner", f"{self.uid}:{self.gid}", f"of {self.path!r} must be from 0 to 2^32 - 2")
        if not _EARLIEST_NS <= self.mtime_ns <= _LATEST_NS:
            raise Invalid("mtime_ns", self.mtime_ns, f"of {self.path!r} is no time that file systems have")
        if self.xattrs:
            check_xattrs(self.path, self.xattrs)


class File(Inode, frozen=True, kw_only=True, tag="file"):
    content: Content


class Directory(Inode, frozen=True, kw_only=True, tag="directory"):
    pass


class Symlink(Inode, frozen=True, kw_only=True, tag="symlink"):
    """Its target is what a guest makes of it: it may lead anywhere, and nobody of ours follows it."""

    target: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != 0o777:
            raise Invalid("mode", self.mode, f"of the symbolic link {self.path!r} must be 0o777")
        try:
            length = len(self.target.encode())
        except UnicodeEncodeError:
            raise Invalid("target", self.target, f"of {self.path!r} is no UTF-8") from None
        if not 1 <= length <= LONGEST_PATH or "\0" in self.target:
            raise Invalid("target", self.target, f"of {self.path!r} must have 1 to {LONGEST_PATH} bytes")


class _Device(Inode, frozen=True, kw_only=True):
    major: int = 0
    minor: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.major < 2**12 and 0 <= self.minor < 2**20):
            raise Invalid(
                "device", f"{self.major}:{self.minor}", f"{self.path!r} is no device that Linux has"
            )


class CharacterDevice(_Device, frozen=True, kw_only=True, tag="character"):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.major == self.minor == 0:
            raise Invalid(
                "device", "0:0", f"{self.path!r} would hide a file where trees are laid over each other"
            )


class BlockDevice(_Device, frozen=True, kw_only=True, tag="block"):
    pass


class Fifo(Inode, frozen=True, kw_only=True, tag="fifo"):
    pass


class HardLink(Struct, frozen=True, kw_only=True, tag_field="kind", tag="link", gc=False):
    """A second name of an entry that comes before it in the tree."""

    path: str
    to: str

    def __post_init__(self) -> None:
        check_tree_path(self.path)
        check_tree_path(self.to, "to")


Entry: TypeAlias = File | Directory | Symlink | HardLink | CharacterDevice | BlockDevice | Fifo


def order_of(path: str) -> str:
    """What trees are sorted by: part by part, so that a directory is followed by what is in it."""
    return "" if path == ROOT else path.replace("/", "\0")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def check_object_id(value: str) -> str:
    if not isinstance(value, str) or not _OBJECT.fullmatch(value):
        raise Invalid("object", value, "must be the BLAKE3 hash of some bytes: 64 hexadecimal digits")
    return value


def check_tree_path(path: str, field: str = "path") -> str:
    """Relative, plain, and no longer or deeper than file systems take. The root is `.`."""
    if path == ROOT:
        return path
    if not _PATH.fullmatch(path):
        why = "must be relative and plain: no empty part, no '.', no '..', no NUL, parts of at most 255 bytes"
        raise Invalid(field, path, why)
    if path.count("/") >= DEEPEST:
        raise Invalid(field, path, f"is more than {DEEPEST} levels deep")
    try:
        raw = path if path.isascii() else path.encode()
    except UnicodeEncodeError:
        raise Invalid(field, path, "is no UTF-8", hint="rename it") from None
    if len(raw) > LONGEST_PATH:
        raise Invalid(field, path, f"must have at most {LONGEST_PATH} bytes")
    if isinstance(raw, bytes) and max(map(len, raw.split(b"/"))) > LONGEST_PART:
        raise Invalid(field, path, f"has a part of more than {LONGEST_PART} bytes")
    return path


def is_kept_xattr(name: str) -> bool:
    """Whether an extended attribute is of an image: those of users, capabilities and access lists.

    Labels are of the host's own policy. Those by which file systems are laid over each other could show a guest what
    is not its own.
    """
    return _XATTR.fullmatch(name) is not None


def check_xattrs(path: str, xattrs: dict[str, bytes]) -> None:
    if len(xattrs) > MOST_XATTRS:
        raise Invalid("xattrs", len(xattrs), f"of {path!r} must be at most {MOST_XATTRS}")
    if sum(len(name) + len(value) for name, value in xattrs.items()) > LONGEST_XATTR:
        raise Invalid("xattrs", f"{len(xattrs)} of them", f"of {path!r} have more than {LONGEST_XATTR} bytes")
    for name in xattrs:
        if not is_kept_xattr(name):
            why = f"of {path!r} is no attribute that images have"
            raise Invalid("xattr", name, why, hint="they have user.*, security.capability and access lists")


def check_tree(entries: Sequence[Entry]) -> None:
    """That they are a tree: sorted, each path once, each below a directory, each hard link behind what it names."""
    if len(entries) > MOST_ENTRIES:
        raise Invalid("tree", f"{len(entries)} entries", f"must be at most {MOST_ENTRIES}")
    if entries and (entries[0].path != ROOT or not isinstance(entries[0], Directory)):
        raise Invalid("tree", entries[0].path, f"must begin with the directory {ROOT!r}")
    directories: set[str] = set()
    others: set[str] = set()
    before = None
    for entry in entries:
        path = entry.path
        order = order_of(path)
        if before is not None and order <= before:
            why = "is in the tree twice" if order == before else "is not in its place: trees are sorted"
            raise Invalid("path", path, why)
        before = order
        if path != ROOT and parent_of(path) not in directories:
            raise Invalid("path", path, "lies below something that is no directory of the tree")
        if isinstance(entry, Directory):
            directories.add(path)
        elif not isinstance(entry, HardLink):
            others.add(path)
        elif entry.to not in others:
            raise Invalid("to", entry.to, f"the hard link {path!r} must name a file that comes before it")


def weight_of(entry: Inode | HardLink) -> int:
    """About the bytes that an entry takes in a manifest: for those who take entries in, and must end in time."""
    weight = 64 + len(entry.path)
    if isinstance(entry, HardLink):
        return weight + len(entry.to)
    weight += sum(len(name) + 2 * len(value) for name, value in entry.xattrs.items())
    if isinstance(entry, File):
        weight += 80 * len(entry.content.parts)
    elif isinstance(entry, Symlink):
        weight += len(entry.target)
    return weight


def pieces_of(entries: Iterable[Entry]) -> Iterator[Piece]:
    """All pieces of all files, in order; one as often as it is there."""
    for entry in entries:
        if isinstance(entry, File):
            yield from entry.content.pieces()
