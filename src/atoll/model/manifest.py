"""Manifests: all that an image is, but for the bytes of its objects. Pure values, and their one encoding.

The encoding is JSON without blanks, fields in their order here, keys sorted. One manifest has one encoding, and its
SHA-256 is the image's digest: bytes that say the same in another way are refused. What people say about an image (name,
description, owner, expiry) is no part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from atoll.errors import Invalid, Malformed, TooLarge
from atoll.model.checks import check_pattern, check_range
from atoll.model.image import FILE_PATTERN, Ability, ContainerBoot, DirectBoot, DiskBoot
from atoll.model.path_pattern import check_path_patterns
from atoll.model.tree import MOST_ENTRIES, Content, Entry, Piece, check_tree, pieces_of

FORMAT = 1
LONGEST_MANIFEST = 64 << 20
MOST_VALUES = 1_500_000
"""Lists and maps in an encoding: each costs far more memory than its two bytes."""
MOST_FILES = 16
MOST_KINDS = 16
MOST_TRIGGERS = 64
MOST_WORDS = 64
LONGEST_WORD = 4096
KIND_PATTERN = r"[a-z][a-z0-9-]{0,31}"
STAGE_PATTERN = r"[a-z][a-z0-9:-]{0,31}"


class Direct(DirectBoot, frozen=True, tag_field="kind", tag="direct"):
    """As DirectBoot, beside the other ways to boot."""


Boot: TypeAlias = Direct | DiskBoot | ContainerBoot


class Trigger(Struct, frozen=True, omit_defaults=True):
    """A command to run in a guest once an update has changed something."""

    paths: tuple[str, ...]
    """Patterns (`path_pattern.py`): it is due when something that one of them covers was changed."""
    command: tuple[str, ...]
    order: int = 0
    """Lower ones first; of equal ones in the order of the manifest."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise Invalid("paths", self.paths, "of a trigger must name at least one")
        check_path_patterns("paths", self.paths)
        if not 1 <= len(self.command) <= MOST_WORDS or not self.command[0]:
            raise Invalid("command", self.command, f"of a trigger must have 1 to {MOST_WORDS} words")
        for word in self.command:
            if len(word) > LONGEST_WORD or "\0" in word:
                raise Invalid(
                    "command", word, f"of a trigger must have words of at most {LONGEST_WORD} letters"
                )
        check_range("order", self.order, -1000, 1000)


class Manifest(Struct, frozen=True, kw_only=True):
    """An image: a tree, or files such as kernel, initrd and disk, or both; and how a machine of it boots."""

    format: int
    kinds: tuple[str, ...]
    """The kinds of machine that it suits, the best first."""
    boot: Boot
    files: dict[str, Content] = {}
    tree: tuple[Entry, ...] = ()
    filter: tuple[str, ...] = ()
    """Patterns of paths that updates leave alone."""
    triggers: tuple[Trigger, ...] = ()
    min_memory_mib: int = 64
    ready: str = "started"
    forkable: bool = False
    agent: bool = False
    imdsv2: bool = False
    honours: tuple[Ability, ...] | None = None

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            hint = "a newer version of Atoll may know it"
            raise Invalid("format", self.format, f"must be {FORMAT}", hint=hint)
        if not 1 <= len(self.kinds) <= MOST_KINDS or len(set(self.kinds)) < len(self.kinds):
            raise Invalid("kinds", self.kinds, f"must be 1 to {MOST_KINDS} kinds of machine, each once")
        for kind in self.kinds:
            check_pattern("kinds", kind, KIND_PATTERN, "kinds of machine such as qemu or lxc")
        if len(self.files) > MOST_FILES:
            raise Invalid("files", len(self.files), f"must be at most {MOST_FILES}")
        for name in self.files:
            check_pattern("files", name, FILE_PATTERN, "plain file names")
        check_tree(self.tree)
        check_path_patterns("filter", self.filter)
        if len(self.triggers) > MOST_TRIGGERS:
            raise Invalid("triggers", len(self.triggers), f"must be at most {MOST_TRIGGERS}")
        check_range("min_memory_mib", self.min_memory_mib, 1, 1 << 24, "MiB")
        check_pattern("ready", self.ready, STAGE_PATTERN, "a stage such as started or port:80")
        if self.honours is not None and len(set(self.honours)) < len(self.honours):
            raise Invalid("honours", self.honours, "must name each once")
        self._check_boots()

    def _check_boots(self) -> None:
        if isinstance(self.boot, ContainerBoot):
            if not self.tree:
                raise Invalid("tree", "empty", "must not be, in an image that boots as a container")
            return
        if isinstance(self.boot, DiskBoot):
            needed = [self.boot.disk]
        else:
            needed = [self.boot.kernel, self.boot.initrd, self.boot.loader_kernel or self.boot.kernel]
        for name in needed:
            if name not in self.files:
                there = ", ".join(sorted(self.files)) or "none"
                raise Invalid("boot", name, "is not among the files of the image", hint=f"there are: {there}")

    def pieces(self) -> Iterator[Piece]:
        """All that it is made of, as often as it is there."""
        for name in sorted(self.files):
            yield from self.files[name].pieces()
        yield from pieces_of(self.tree)

    def objects(self) -> dict[str, int]:
        """The objects that it needs, with their sizes."""
        return {piece.id: piece.size for piece in self.pieces()}


def direct(boot: DirectBoot) -> Direct:
    """How an image of a node's store boots, as manifests have it."""
    return Direct(*structs.astuple(boot))


def encode(manifest: Manifest) -> bytes:
    """The one encoding. TooLarge where nobody would take it."""
    data = _ENCODER.encode(manifest)
    _check_size(data)
    return data


def digest_of(encoded: bytes) -> str:
    """The digest of an image, from the encoding of its manifest."""
    return hashlib.sha256(encoded).hexdigest()


def decode(data: bytes) -> Manifest:
    """A manifest from outside: all of it checked, in memory that its limits bound."""
    _check_size(data)
    try:
        manifest = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f"reading a manifest: {_brief(error)}", hint="fetch it again") from None
    if _ENCODER.encode(manifest) != data:
        raise Malformed(
            "reading a manifest: it is not in the one form that manifests have",
            hint="encode it with a program of this version",
        )
    return manifest


def _check_size(data: bytes) -> None:
    if len(data) > LONGEST_MANIFEST:
        raise TooLarge(
            f"a manifest of {len(data)} bytes: must be at most {LONGEST_MANIFEST}",
            hint="an image of fewer files, or of fewer holes",
        )
    # Counted before anything is made of them. One more has a kind: how it boots.
    entries, values = data.count(b'"kind":') - 1, data.count(b"[") + data.count(b"{")
    if entries > MOST_ENTRIES or values > MOST_VALUES:
        raise TooLarge(
            f"a manifest of {entries} entries, {values} lists and maps: "
            f"must be at most {MOST_ENTRIES} and {MOST_VALUES}",
            hint="an image of fewer files, or of fewer holes",
        )


def _brief(error: Exception) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", str(error))[:200] or type(error).__name__


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Manifest)
