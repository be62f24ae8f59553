"""The images of a node, on disk. Effects: files below its root, through atoll.system.files.

    <root>/<name>/image.json            what the image is; replacing this file replaces the image
    <root>/<name>/<digest>/<file>       its files, never changed

An image that is replaced keeps nothing but the files that running machines hold open.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.errors import AtollError, HostFailure, Invalid, NotFound
from atoll.model.checks import check_image, check_pattern
from atoll.model.image import FILE_PATTERN, DirectBoot, Image
from atoll.system import files as durable

_RECORD = "image.json"
_RECORD_LIMIT = 1024 * 1024
_LOCK = ".lock"
_log = logging.getLogger(__name__)


class Record(Struct, frozen=True):
    """What image.json holds: the image, the sizes of its files, and what it was made from."""

    image: Image
    sizes: dict[str, int]
    origin: str = ""


class ImageStore:
    """A directory of images. Every method may be called again with the same arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self) -> tuple[Image, ...]:
        """All images by name. A damaged one is left out, with a warning in the log."""
        images = []
        for name in self._names():
            try:
                images.append(self._record(name).image)
            except AtollError as error:
                _log.warning("%s", error.brief)
        return tuple(images)

    def get(self, name: str) -> Image:
        """The image by its name; NotFound names those that there are."""
        check_image("image", name)
        return self._record(name).image

    def origin(self, name: str) -> str | None:
        """What the image was made from, as its builder put it; None when there is no sound image."""
        check_image("image", name)
        try:
            return self._record(name).origin
        except AtollError:
            return None

    def path(self, image: Image, file: str) -> Path:
        """Where a file of an image is."""
        check_pattern("file", file, FILE_PATTERN, "a plain file name")
        return self._files(image.name, image.digest) / file

    def add(
        self,
        name: str,
        *,
        kinds: tuple[str, ...],
        boot: DirectBoot,
        files: Mapping[str, Path],
        description: str = "",
        min_memory_mib: int = 64,
        ready: str = "started",
        origin: str = "",
        forkable: bool = False,
        rootfs: str = "",
    ) -> Image:
        """Copy the files in and make them the image of that name, all or nothing."""
        check_image("image", name)
        content = {file: _read(name, file, files[file]) for file in sorted(files)}
        _check_boots(boot, rootfs, content)
        image = Image(
            name=name,
            kinds=kinds,
            boot=boot,
            digest=digest_of(content),
            description=description,
            min_memory_mib=min_memory_mib,
            ready=ready,
            forkable=forkable,
            rootfs=rootfs,
        )
        sizes = {file: len(data) for file, data in content.items()}
        durable.make_dirs(self.root / name, 0o755)
        with durable.exclusive(self.root / _LOCK):
            if not _all_there(self._files(name, image.digest), sizes):
                self._put(image, content)
            record = msgspec.json.encode(Record(image, sizes, origin))
            durable.write_durably(self.root / name / _RECORD, record, 0o644)
            self._tidy(name, keep=image.digest)
        return image

    def _put(self, image: Image, content: Mapping[str, bytes]) -> None:
        final = self._files(image.name, image.digest)
        temporary = final.with_name(f".{image.digest}.new")
        durable.remove_tree(temporary)
        durable.remove_tree(final)
        durable.make_dirs(temporary, 0o755)
        for file, data in content.items():
            durable.write_durably(temporary / file, data, 0o644)
        temporary.rename(final)
        durable.sync_dir(final.parent)

    def _tidy(self, name: str, keep: str) -> None:
        """Remove what an older image, or an add that was killed, left behind."""
        for entry in (self.root / name).iterdir():
            if entry.name not in (keep, _RECORD):
                durable.remove_tree(entry)

    def _names(self) -> tuple[str, ...]:
        if not self.root.is_dir():
            return ()
        entries = sorted(self.root.iterdir())
        return tuple(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))

    def _files(self, name: str, digest: str) -> Path:
        return self.root / name / digest

    def _record(self, name: str) -> Record:
        if not (self.root / name).is_dir():
            raise self._not_found(name)
        try:
            data = durable.read_limited(self.root / name / _RECORD, _RECORD_LIMIT)
            record = msgspec.json.decode(data, type=Record)
        except (OSError, msgspec.MsgspecError, AtollError) as error:
            raise _damaged(name, f"{_RECORD}: {error}") from error
        if record.image.name != name:
            raise _damaged(name, f"{_RECORD} is that of {record.image.name}")
        if not _all_there(self._files(name, record.image.digest), record.sizes):
            raise _damaged(name, "a file is missing or has another size")
        return record

    def _not_found(self, name: str) -> NotFound:
        there = ", ".join(image.name for image in self.list())
        return NotFound(
            f"image {name}: there is none of that name",
            hint=f"there are: {there}" if there else "there are none yet; the appliance comes with: atoll up",
        )


def digest_of(content: Mapping[str, bytes]) -> str:
    """One hash over names and contents. Lengths go in too, so that nothing can move from one to the other."""
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name}\0{len(content[name])}\0".encode())
        digest.update(content[name])
    return digest.hexdigest()


def _read(image: str, file: str, path: Path) -> bytes:
    check_pattern("file", file, FILE_PATTERN, "a plain file name")
    try:
        return path.read_bytes()
    except OSError as error:
        raise HostFailure(
            f"adding image {image}: reading {path}: {error.strerror}",
            hint="check the path and its permissions",
        ) from error


def _check_boots(boot: DirectBoot, rootfs: str, content: Mapping[str, bytes]) -> None:
    named = (
        ("kernel", boot.kernel),
        ("initrd", boot.initrd),
        ("loader_kernel", boot.loader_kernel or boot.kernel),
        ("rootfs", rootfs or boot.kernel),
    )
    for field, file in named:
        if file not in content:
            raise Invalid(
                field, file, "is not among the files", hint=f"there are: {', '.join(sorted(content))}"
            )


def _all_there(directory: Path, sizes: Mapping[str, int]) -> bool:
    try:
        return all((directory / file).stat().st_size == size for file, size in sizes.items())
    except OSError:
        return False


def _damaged(name: str, why: str) -> HostFailure:
    return HostFailure(
        f"image {name} is damaged: {why}", hint="add it again; atoll up does so for the appliance"
    )
