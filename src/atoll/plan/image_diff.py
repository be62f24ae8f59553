"""What differs between two trees, and what an update from one to the other moves. Pure.

A filter names paths that updates leave alone: what it covers is neither added, changed nor removed. A directory that
holds something of the kind stays as well, whatever the new tree says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from atoll.model.manifest import Manifest, Trigger
from atoll.model.path_pattern import PathPatterns
from atoll.model.tree import (
    ROOT,
    BlockDevice,
    CharacterDevice,
    Directory,
    Entry,
    File,
    HardLink,
    Symlink,
    order_of,
    parent_of,
)


class Aspect(StrEnum):
    """In what an entry can differ from another one of the same path."""

    KIND = "kind"
    """A file here, a directory there. What else differs does not matter then."""
    CONTENT = "content"
    """The bytes of a file, the target of a link, the numbers of a device."""
    MODE = "mode"
    OWNER = "owner"
    XATTRS = "xattrs"
    TIME = "time"


class Changed(Struct, frozen=True):
    old: Entry
    new: Entry
    aspects: frozenset[Aspect]


class TreeDiff(Struct, frozen=True):
    """All of them in the order of trees: directories before what is in them."""

    added: tuple[Entry, ...]
    removed: tuple[Entry, ...]
    changed: tuple[Changed, ...]
    stays: tuple[str, ...] = ()
    """Directories that the new tree does not have, and that stay for what the filter leaves alone in them."""

    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)

    def paths(self) -> list[str]:
        """All that differ, in order."""
        entries = (*self.added, *self.removed, *(change.new for change in self.changed))
        return sorted((entry.path for entry in entries), key=order_of)


def differences(old: Sequence[Entry], new: Sequence[Entry], left_alone: PathPatterns) -> TreeDiff:
    """What makes the old tree the new one."""
    before = {entry.path: entry for entry in old}
    after = {entry.path: entry for entry in new}
    needed = _directories_of(path for path in before if left_alone.covers(path))
    added, removed, changed, stays = [], [], [], []
    for path in sorted(before.keys() | after.keys(), key=order_of):
        if left_alone.covers(path):
            continue
        was, is_ = before.get(path), after.get(path)
        if path in needed and not isinstance(is_, Directory):
            stays.append(path)
        elif was is None:
            assert is_ is not None
            added.append(is_)
        elif is_ is None:
            removed.append(was)
        elif aspects := _aspects(was, is_):
            changed.append(Changed(was, is_, aspects))
    return TreeDiff(tuple(added), tuple(removed), tuple(changed), tuple(stays))


def objects_to_move(new: Manifest, there: Collection[str]) -> dict[str, int]:
    """The objects of an image that are not there yet, with their sizes."""
    return {piece: size for piece, size in new.objects().items() if piece not in there}


def bytes_to_move(new: Manifest, there: Collection[str]) -> int:
    return sum(objects_to_move(new, there).values())


def due(triggers: Iterable[Trigger], changed: Sequence[str]) -> list[Trigger]:
    """Those that wait for one of these paths, in the order in which they are to run."""
    waiting = sorted(triggers, key=lambda trigger: trigger.order)
    return [trigger for trigger in waiting if any(map(PathPatterns(trigger.paths).covers, changed))]


def _directories_of(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while path != ROOT and (path := parent_of(path)) not in found:
            found.add(path)
    return found


def _aspects(was: Entry, is_: Entry) -> frozenset[Aspect]:
    if type(was) is not type(is_):
        return frozenset({Aspect.KIND})
    if isinstance(was, HardLink) or isinstance(is_, HardLink):
        return frozenset({Aspect.CONTENT} if was != is_ else ())
    differs = {
        Aspect.CONTENT: _content(was) != _content(is_),
        Aspect.MODE: was.mode != is_.mode,
        Aspect.OWNER: (was.uid, was.gid) != (is_.uid, is_.gid),
        Aspect.XATTRS: was.xattrs != is_.xattrs,
        Aspect.TIME: was.mtime_ns != is_.mtime_ns,
    }
    return frozenset(aspect for aspect, differing in differs.items() if differing)


def _content(entry: Entry) -> object:
    match entry:
        case File():
            return entry.content
        case Symlink():
            return entry.target
        case CharacterDevice() | BlockDevice():
            return entry.major, entry.minor
    return None
