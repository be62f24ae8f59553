"""Trees and manifests drawn by hypothesis: any that there can be, small."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from atoll.model.image import ContainerBoot
from atoll.model.manifest import FORMAT, Manifest
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
    Hole,
    Part,
    Piece,
    Symlink,
    order_of,
)

IDS = st.integers(0, 40).map(lambda number: f"{number:064x}")
PIECES = IDS.map(lambda one: Piece(one, 1 + int(one, 16) * 4999 % PIECE_BYTES))
"""One id is always of one size, as hashes are."""
WORDS = st.text("ab.é", min_size=1, max_size=3).filter(lambda word: word not in (".", ".."))
PATHS = st.lists(WORDS, min_size=1, max_size=4).map("/".join)
XATTRS = st.dictionaries(
    st.sampled_from(["user.a", "user.b", "security.capability"]), st.binary(max_size=4), max_size=2
)
FACTS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from([0o644, 0o755, 0o4755]),
        "uid": st.integers(0, 2),
        "gid": st.integers(0, 2),
        "mtime_ns": st.sampled_from([0, 1, 10**18]),
        "xattrs": XATTRS,
    }
)


@st.composite
def contents(draw: DrawFn) -> Content:
    parts: list[Part] = []
    for part in draw(st.lists(PIECES | st.integers(1, 10).map(Hole), max_size=3)):
        if not (parts and isinstance(part, Hole) and isinstance(parts[-1], Hole)):
            parts.append(part)
    return Content(sum(part.size for part in parts), tuple(parts))


@st.composite
def entry_lists(draw: DrawFn) -> tuple[Entry, ...]:
    """A tree: whatever is drawn gets the directories that it needs."""
    made: dict[str, Entry] = {ROOT: Directory(path=ROOT, **draw(FACTS))}
    for path in draw(st.lists(PATHS, max_size=8, unique=True)):
        parts = path.split("/")
        uppers = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if any(not isinstance(made.get(upper, made[ROOT]), Directory) for upper in uppers) or path in made:
            continue
        for upper in uppers:
            made.setdefault(upper, Directory(path=upper, **draw(FACTS)))
        made[path] = draw(_entry(path))
    ordered = sorted(made.values(), key=lambda entry: order_of(entry.path))
    targets: list[str] = []
    linked: list[Entry] = []
    for entry in ordered:
        if isinstance(entry, Fifo) and targets and draw(st.booleans()):
            entry = HardLink(path=entry.path, to=draw(st.sampled_from(targets)))
        if not isinstance(entry, Directory | HardLink):
            targets.append(entry.path)
        linked.append(entry)
    return tuple(linked)


def _entry(path: str) -> st.SearchStrategy[Any]:
    return st.tuples(
        st.sampled_from(["file", "file", "directory", "symlink", "character", "block", "fifo"]),
        FACTS,
        contents(),
    ).map(lambda drawn: _made(path, *drawn))


def _made(path: str, kind: str, facts: dict[str, Any], content: Content) -> Entry:
    match kind:
        case "file":
            return File(path=path, content=content, **facts)
        case "directory":
            return Directory(path=path, **facts)
        case "symlink":
            return Symlink(path=path, target="../elsewhere", **facts | {"mode": 0o777})
        case "character":
            return CharacterDevice(path=path, major=1, minor=3, **facts)
        case "block":
            return BlockDevice(path=path, major=7, **facts)
    return Fifo(path=path, **facts)


def manifest_of(tree: tuple[Entry, ...], **more: Any) -> Manifest:
    """One that boots as a container."""
    return Manifest(format=FORMAT, kinds=("lxc",), boot=ContainerBoot(), tree=tree, **more)


def file_of(path: str, *pieces: Piece, **more: Any) -> File:
    content = Content(sum(piece.size for piece in pieces), pieces)
    return File(path=path, content=content, **{"mode": 0o644} | more)


ROOT_DIRECTORY = Directory(path=ROOT, mode=0o755)
