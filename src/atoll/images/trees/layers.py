"""Trees laid over each other, as the layers of an OCI image are. Pure.

In a layer `.wh.NAME` takes NAME away from what is below it, and `.wh..wh..opq` all that its directory holds there. A
directory over a directory is both of them, with the facts of the upper one; anything else hides what it lies upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from atoll.errors import Invalid
from atoll.model.tree import (
    MOST_ENTRIES,
    ROOT,
    Directory,
    Entry,
    HardLink,
    Inode,
    Symlink,
    check_tree,
    order_of,
    parent_of,
)

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
MOST_LAYERS = 128


class Layer(Struct, frozen=True):
    """A tree as an archive had it."""

    tree: tuple[Entry, ...]
    implied: frozenset[str] = frozenset()
    """Directories that the archive did not say anything about, but has something in."""


def tree_of(names: Mapping[str, Inode]) -> tuple[Entry, ...]:
    """A tree from what is at each path; the same value at several paths is one file of several names."""
    first: dict[int, str] = {}
    entries: list[Entry] = []
    for path in sorted(names, key=order_of):
        inode = names[path]
        if not isinstance(inode, Directory) and id(inode) in first:
            entries.append(HardLink(path=path, to=first[id(inode)]))
            continue
        first[id(inode)] = path
        made: Entry = structs.replace(inode, path=path)  # type: ignore[assignment]
        entries.append(made)
    check_tree(entries)
    return tuple(entries)


def names_of(tree: Iterable[Entry]) -> dict[str, Inode]:
    """What is at each path of a tree: the opposite of `tree_of`."""
    names: dict[str, Inode] = {}
    for entry in tree:
        names[entry.path] = names[entry.to] if isinstance(entry, HardLink) else entry
    return names


def stacked(layers: Sequence[Layer]) -> tuple[Entry, ...]:
    """The tree that these make, the lowest first."""
    if len(layers) > MOST_LAYERS:
        raise Invalid("layers", len(layers), f"must be at most {MOST_LAYERS}")
    names: dict[str, Inode] = {}
    for layer in layers:
        upper = names_of(layer.tree)
        _take_away(names, upper)
        _lay_over(names, upper, layer.implied)
        if len(names) > MOST_ENTRIES:
            raise Invalid("layers", f"{len(names)} entries", f"must be at most {MOST_ENTRIES}")
    return tree_of(names)


def _take_away(names: dict[str, Inode], upper: Mapping[str, Inode]) -> None:
    whole: set[str] = set()
    emptied: set[str] = set()
    for path in upper:
        above, name = parent_of(path), path.rpartition("/")[2]
        if name == OPAQUE:
            emptied.add(above)
        elif name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise Invalid("layer", path, "takes away what has no name")
            whole.add(hidden if above == ROOT else f"{above}/{hidden}")
    if whole or emptied:
        for path in [path for path in names if _is_gone(path, whole, emptied)]:
            del names[path]


def _is_gone(path: str, whole: set[str], emptied: set[str]) -> bool:
    while path != ROOT:
        if path in whole or parent_of(path) in emptied:
            return True
        path = parent_of(path)
    return False


def _lay_over(names: dict[str, Inode], upper: Mapping[str, Inode], implied: frozenset[str]) -> None:
    hidden: set[str] = set()
    for path, inode in upper.items():
        if path.rpartition("/")[2].startswith(WHITEOUT):
            continue
        below = names.get(path)
        if path in implied and below is not None:
            if isinstance(below, Symlink):
                why = "is a directory in one layer, and a symbolic link in one below it"
                raise Invalid("layer", path, why, hint="name files by where they are, not through links")
            if isinstance(below, Directory):
                continue
        if below is not None and isinstance(below, Directory) and not isinstance(inode, Directory):
            hidden.add(path)
        names[path] = inode
    if hidden:
        for path in [
            path for path in names if path not in upper and _is_gone(parent_of(path), hidden, set())
        ]:
            del names[path]
