"""`atoll vm cp`: files and trees between this machine and a guest, over `vm exec`. Effects: files, the Hypervisor.

A single file goes by itself, so that it can go on where it broke off: what is there of it is in NAME.part beside its
destination, and is only used if it is the beginning of the file, by its hash. A tree is a tar archive. What the guest
needs for it are sh, stat, sha256sum, head, tail and, for trees, find and tar, as busybox has them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.vm_ref import check_ref
from atoll.errors import AtollError, Conflict, HostFailure, Invalid, Malformed, NoCapacity, NotFound
from atoll.system import allocator

if TYPE_CHECKING:
    from atoll.api.client import Client
    from atoll.cli.tar_stream import Reader
    from atoll.model.command import Command

CHUNK = 256 << 10
PART = ".part"
MOST_HEADER = 512
_TELL_EVERY_S = 0.2

# Where a file of this name goes, whether that is a directory (d), and what is there of it.
_PROBE = """
path=$1 base=$2
if [ -d "$path" ]; then path=${path%/}/$base; fi
kind=-; if [ -d "$path" ]; then kind=d; fi
size=0 sum=-
if [ -f "$path.part" ]; then size=$(stat -c %s "$path.part") && sum=$(sha256sum <"$path.part") || exit; fi
printf '%s %s %s\\n%s\\n' "$kind" "$size" "${sum%% *}" "$path"
"""
_RECEIVE = """
path=$1 offset=$2 size=$3 mode=$4 time=$5
if [ "$offset" = 0 ]; then : >"$path.part" || exit; fi
cat >>"$path.part" || exit
[ "$(stat -c %s "$path.part")" = "$size" ] || exit 75
chmod "$mode" "$path.part" && touch -d "@$time" "$path.part" && mv -f "$path.part" "$path"
"""
_RECEIVE_TREE = """
path=$1 base=$2
if [ -d "$path" ]; then path=${path%/}/$base; fi
mkdir -p "$path" && tar -xpf - -C "$path"
"""
_SEND = """
path=$1 offset=$2 sum=$3
if [ -f "$path" ]; then
    set -- $(stat -c '%s %a %Y' "$path") || exit
    if [ "$offset" -gt 0 ] && [ "$offset" -le "$1" ]; then
        seen=$(head -c "$offset" "$path" | sha256sum); [ "${seen%% *}" = "$sum" ] || offset=0
    else offset=0; fi
    printf 'f %s %s %s %s\\n' "$1" "$2" "$3" "$offset"
    if [ "$offset" = 0 ]; then exec cat "$path"; fi
    exec tail -c +$((offset + 1)) "$path"
fi
if [ ! -d "$path" ]; then echo "$path: no such file or directory" >&2; exit 66; fi
cd "$path" || exit
count=$(find . | wc -l) || exit
size=$(find . -type f -exec stat -c %s {} + | { n=0; while read -r s; do n=$((n + s)); done; echo $n; })
printf 'd %s %s\\n' "$((count))" "$size"
exec tar -cf - .
"""


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "cp",
        copy,
        summary="Copy a file or a tree into a guest, or out of one: one side is VM:PATH. Modes and times are kept.",
        example="atoll vm cp ./site web:/srv/site",
    )
    add.add_argument("source", metavar="SOURCE", help="a path here, or VM:PATH")
    add.add_argument(
        "destination", metavar="DESTINATION", help="a path here, or VM:PATH; a directory: into it"
    )
    add.add_argument("--setid", action="store_true", help="keep the bits that run programs as their owner")


def copy(options: argparse.Namespace) -> int:
    from atoll.cli.context import connect

    source, destination = place_of(options.source), place_of(options.destination)
    if (source is None) == (destination is None):
        raise Invalid(
            "source", options.source, "one of both sides must be in a VM, and one here",
            hint="for example: atoll vm cp web:/var/log/app.log .",
        )  # fmt: skip
    allocator.keep_pieces()
    with connect(options) as client:
        if destination is not None:
            _upload(client, Path(options.source), *destination, Progress(options.quiet))
        elif source is not None:
            fetch = _Fetch(client, *source, Path(options.destination), keep_setid=options.setid)
            fetch.run(Progress(options.quiet))
    return 0


def place_of(text: str) -> tuple[str, str] | None:
    """The VM and the path there; None for a path here. Pure. A path here with a colon in it is written ./a:b."""
    ref, colon, path = text.partition(":")
    if not colon or "/" in ref or ref in (".", ""):
        return None
    return check_ref(ref), path or "."


class Progress:
    """How far it is, on a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._next_s = 0.0
        self.done = 0
        self.whole = 0

    def add(self, size: int) -> None:
        self.done += size
        now = time.monotonic()
        if self._shown and now >= self._next_s:
            self._next_s = now + _TELL_EVERY_S
            share = f"{100 * self.done // self.whole:3d}% of " if self.whole else ""
            sys.stderr.write(f"\r{self.done >> 20} MiB, {share}{self.whole >> 20} MiB\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._next_s:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# --- into a guest


def _upload(client: Client, source: Path, ref: str, path: str, progress: Progress) -> None:
    try:
        seen = source.stat()
    except OSError as error:
        raise NotFound(f"vm cp: {source}: {(error.strerror or '').lower()}") from None
    base = source.resolve().name if source.name in ("", ".", "..") else source.name
    try:
        if stat.S_ISREG(seen.st_mode):
            _upload_file(client, source, seen, ref, path, base, progress)
        elif stat.S_ISDIR(seen.st_mode):
            _feed(client, ref, _RECEIVE_TREE, (path, base), _archive(source), progress)
        else:
            raise Malformed(f"vm cp: {source}: is no file or directory")
    finally:
        progress.end()


def _upload_file(
    client: Client, source: Path, seen: os.stat_result, ref: str, path: str, base: str, progress: Progress
) -> None:
    head, _, final = _said(client, ref, _PROBE, path, base).partition("\n")
    kind, part, sha256 = _words(head, 3)
    final = final.removesuffix("\n")
    if kind == "d":
        raise Conflict(f"vm cp: {ref}:{final} is a directory")
    progress.whole = seen.st_size
    with source.open("rb") as file:
        offset = _agreed(file, int(part), sha256, seen.st_size)
        progress.done = offset
        file.seek(offset)
        words = (
            final,
            str(offset),
            str(seen.st_size),
            f"{stat.S_IMODE(seen.st_mode):o}",
            str(int(seen.st_mtime)),
        )
        _feed(client, ref, _RECEIVE, words, iter(lambda: file.read(CHUNK), b""), progress)


def _agreed(file: IO[bytes], size: int, sha256: str, whole: int) -> int:
    """Where to go on: behind what is there, if that is the beginning of the file."""
    if not 0 < size <= whole:
        return 0
    return size if _hash_of(file, size) == sha256 else 0


def _hash_of(file: IO[bytes], size: int) -> str:
    digest, left = hashlib.sha256(), size
    while left and (piece := file.read(min(CHUNK, left))):
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


def _archive(root: Path) -> Iterator[bytes]:
    """A tar archive, piece by piece. Owners are left to the guest: all is root's there."""
    import tarfile

    pieces, directories = _Pieces(), []
    with tarfile.open(fileobj=pieces, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK) as archive:  # type: ignore[call-overload]
        for path in _below(root):
            entry = archive.gettarinfo(str(path), arcname=os.path.relpath(path, root))
            if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
                continue
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            if entry.isreg():
                with path.open("rb") as file:
                    archive.fileobj.write(entry.tobuf(tarfile.GNU_FORMAT))
                    left = entry.size
                    while left:
                        piece = file.read(min(CHUNK, left))
                        if not piece:
                            raise HostFailure(f"vm cp: {path}: it became shorter while it was copied")
                        archive.fileobj.write(piece)
                        left -= len(piece)
                        yield from pieces.taken()
                    archive.fileobj.write(b"\0" * (-entry.size % 512))
            else:
                archive.addfile(entry)
                directories += [entry] if entry.isdir() else []
            yield from pieces.taken()
        # Once more: what was put into them has changed their times, which not every tar puts right by itself.
        for entry in reversed(directories):
            archive.addfile(entry)
    yield from pieces.taken()


class _Pieces:
    """A file that is written to, and read from at the same time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._held.append(bytes(data))
        return len(data)

    def taken(self) -> Iterator[bytes]:
        held, self._held = self._held, []
        yield from (piece for piece in held if piece)


def _below(root: Path) -> Iterator[Path]:
    yield root
    for directory, below, files in os.walk(root):
        below.sort()
        for each in sorted([*below, *files]):
            yield Path(directory) / each


def _feed(
    client: Client, ref: str, script: str, words: tuple[str, ...], pieces: Iterator[bytes], progress: Progress
) -> None:
    """Run a script with these bytes as its input."""
    from atoll.api.running import Running

    said, unsent, ended = bytearray(), b"", False
    with Running(client, ref, _command(script, words)) as running:
        while running.status is None:
            if not unsent and not ended and running.room:
                unsent = next(pieces, b"")
                if not unsent:
                    running.end_input()
                    ended = True
            if unsent and (room := running.room):
                piece, unsent = unsent[:room], unsent[room:]
                running.write(piece)
                progress.add(len(piece))
            # More can be sent at once: what the service says meanwhile is only looked at.
            wrote, _ = running.step(timeout_s=0 if running.room and not ended else None)
            for stream, data in wrote:
                if stream == 2 and len(said) < MOST_HEADER:
                    said += data
        _check(ref, running.status, bytes(said))


def _said(client: Client, ref: str, script: str, *words: str) -> str:
    """What a script says, which is not much."""
    from atoll.api.running import run

    done = run(client, ref, _command(script, words), most_bytes=64 << 10)
    _check(ref, done.status, done.stderr)
    return done.stdout.decode("utf-8", "surrogateescape")


def _command(script: str, words: tuple[str, ...]) -> Command:
    from atoll.model.command import Command

    return Command(("/bin/sh", "-c", script, "cp", *words), input=True)


def _check(ref: str, status: int, said: bytes) -> None:
    if status == 0:
        return
    last = said.decode(errors="replace").strip().splitlines()
    if status == 75:
        raise HostFailure(f"vm cp: {ref}: it changed while it was copied", hint="copy it again")
    why = last[-1] if last else f"a script in the guest ended with status {status}"
    kind = NotFound if status == 66 else AtollError
    raise kind(
        f"vm cp: {ref}: {why}", hint="needed in the guest: sh, cat, stat, sha256sum, head, tail, find, tar"
    )


def _words(line: str, count: int) -> list[str]:
    words = line.split(" ")
    if len(words) != count or not re.fullmatch(r"[0-9]{1,18}", words[1]):
        raise Malformed("vm cp: the guest said what is not understood")
    return words


# --- out of a guest


class _Fetch:
    """One file or tree that comes. What the guest says is not believed: see tar_stream.py and landing.py."""

    def __init__(self, client: Client, ref: str, path: str, destination: Path, *, keep_setid: bool) -> None:
        self._client = client
        self._ref = ref
        self._path = path
        base = PurePosixPath(path).name
        base = ref if base in ("", ".", "..") else base
        self._target = destination / base if destination.is_dir() else destination
        self._keep_setid = keep_setid

    def run(self, progress: Progress) -> None:
        part = self._target.with_name(self._target.name + PART)
        size, sha256 = 0, "-"
        if part.is_file() and not part.is_symlink():
            size = part.stat().st_size
            with part.open("rb") as file:
                sha256 = _hash_of(file, size)
        from atoll.api.running import Running

        header, said, take = b"", bytearray(), None
        command = _command(_SEND, (self._path, str(size), sha256))
        try:
            with Running(self._client, self._ref, command) as running:
                running.end_input()
                while running.status is None:
                    for stream, data in running.step()[0]:
                        if stream == 2:
                            said += data[: MOST_HEADER - len(said)]
                            continue
                        if take is None:
                            header += data
                            line, newline, data = header.partition(b"\n")
                            if not newline:
                                if len(header) > MOST_HEADER:
                                    raise Malformed("vm cp: the guest said what is not understood")
                                continue
                            take = self._receiver(line.decode("ascii", "replace"), part, progress)
                        take.take(data)
                        progress.add(len(data))
                _check(self._ref, running.status, bytes(said))
            if take is None:
                raise Malformed("vm cp: the guest said nothing")
            take.finish()
        finally:
            progress.end()
            if take is not None:
                take.close()

    def _receiver(self, line: str, part: Path, progress: Progress) -> _File | _Tree:
        kind, *words = line.split(" ")
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise Malformed("vm cp: the guest said what is not understood")
        if kind == "f" and len(words) == 4:
            size, offset = int(words[0]), int(words[3])
            progress.whole, progress.done = size, offset
            bits = 0o7777 if self._keep_setid else 0o777
            return _File(self._target, part, size, int(words[1], 8) & bits, int(words[2]), offset)
        if kind == "d" and len(words) == 2:
            progress.whole = int(words[1])
            return _Tree(self._target, int(words[0]), int(words[1]), keep_setid=self._keep_setid)
        raise Malformed("vm cp: the guest said what is not understood")


class _File:
    def __init__(self, target: Path, part: Path, size: int, mode: int, mtime: int, offset: int) -> None:
        if target.is_dir():
            raise Conflict(f"vm cp: {target} is a directory")
        _check_room(part.parent, size - offset)
        self._target, self._part, self._mode, self._mtime = target, part, mode, mtime
        self._left = size - offset
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(part, flags, 0o600)
        os.ftruncate(self._file, offset)
        os.lseek(self._file, offset, os.SEEK_SET)

    def take(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise Malformed("vm cp: the guest sends more than it announced")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def finish(self) -> None:
        if self._left:
            raise HostFailure("vm cp: it broke off", hint="copy it again: it goes on where it broke off")
        os.fchmod(self._file, self._mode)
        os.utime(self._file, (self._mtime, self._mtime))
        self._part.replace(self._target)

    def close(self) -> None:
        os.close(self._file)


class _Tree:
    def __init__(self, target: Path, count: int, size: int, *, keep_setid: bool) -> None:
        from atoll.cli.landing import Landing, Limits
        from atoll.cli.tar_stream import Reader

        _check_room(target if target.is_dir() else target.parent, size)
        target.mkdir(exist_ok=True)
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._reader: Reader = Reader()
        self._landing = Landing(self._root, Limits(count, size), keep_setid=keep_setid)

    def take(self, data: bytes) -> None:
        for piece in self._reader.feed(data):
            self._landing.take(piece)

    def finish(self) -> None:
        if not self._reader.ended:
            raise HostFailure("vm cp: it broke off", hint="copy it again")
        self._landing.finish()
        for skipped in self._landing.skipped:
            sys.stderr.write(f"atoll: left out: {shlex.quote(skipped)}\n")

    def close(self) -> None:
        self._landing.close()
        os.close(self._root)


def _check_room(directory: Path, size: int) -> None:
    seen = os.statvfs(directory)
    if size > seen.f_bavail * seen.f_frsize:
        raise NoCapacity(f"vm cp: {size >> 20} MiB do not fit into {directory}", hint="make room there")
