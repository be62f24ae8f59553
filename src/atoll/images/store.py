"""The images of a node, on disk. Effects: files below its root, through atoll.system.

    <root>/<name>/image.json               what the image is; replacing this file replaces the image
    <root>/<name>/<digest>/<file>          the files of it, or of one before it; never changed
    <root>/<name>/<digest>.json            what that one is
    <root>/<name>/<digest>.held/<mark>     an agent whose machines need that one
    <root>/.lock/                          held by whoever changes something; others can open the root, so it is no lock

Adding an image removes none: a VM runs the one that it was made of for as long as it lives. Agents hold what their
machines need, and remove what nobody holds. Several agents may share a store.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from atoll.errors import AtollError, HostFailure, Invalid, NotFound
from atoll.model.checks import check_image, check_pattern
from atoll.model.image import FILE_PATTERN, Ability, DirectBoot, Image
from atoll.system import files as durable
from atoll.system import steps
from atoll.system.directory_lock import alone_in
from atoll.system.owners import Owner, is_gone

DIGEST_PATTERN = r"[0-9a-f]{64}"
_RECORD = "image.json"
_OWN_RECORD = ".json"
_HELD = ".held"
_LOCK = ".lock"
_RECORD_LIMIT = 1024 * 1024
_OWNER_LIMIT = 8192
_log = logging.getLogger(__name__)


class ImageRecord(Struct, frozen=True):
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
        """The image by its name, as it is now; NotFound names those that there are."""
        check_image("image", name)
        return self._record(name).image

    def get_digest(self, name: str, digest: str) -> Image:
        """The image as it was when it had this digest; NotFound when that one is gone."""
        check_image("image", name)
        check_pattern("digest", digest, DIGEST_PATTERN, "64 hexadecimal digits")
        with contextlib.suppress(FileNotFoundError):
            return self._read(name, f"{digest}{_OWN_RECORD}", digest).image
        # One that was added when no image had a record by its digest.
        with contextlib.suppress(AtollError):
            image = self._record(name).image
            if image.digest == digest:
                return image
        raise NotFound(
            f"image {name} {digest[:12]}: it is gone from {self.root}",
            hint="put its files back from a backup, or create the VM anew",
        )

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
        agent: bool = False,
        rootfs: str = "",
        imdsv2: bool = False,
        honours: tuple[Ability, ...] | None = None,
    ) -> Image:
        """Copy the files in and make them the image of that name, all or nothing."""
        check_image("image", name)
        content = {file: _read_source(name, file, files[file]) for file in sorted(files)}
        _check_boots(boot, rootfs, content)
        image = Image(
            name=name,
            kinds=kinds,
            boot=boot,
            digest="",
            description=description,
            min_memory_mib=min_memory_mib,
            ready=ready,
            forkable=forkable,
            agent=agent,
            rootfs=rootfs,
            imdsv2=imdsv2,
            honours=honours,
        )
        image = structs.replace(image, digest=digest_of(content, image))
        sizes = {file: len(data) for file, data in content.items()}
        with self._alone():
            durable.make_dirs(self.root / name, 0o755)
            self._clear(name)
            self._keep_last(name)
            if not _all_there(self._files(name, image.digest), sizes):
                self._put(image, content)
            record = msgspec.json.encode(ImageRecord(image, sizes, origin))
            for file in (f"{image.digest}{_OWN_RECORD}", _RECORD):
                durable.write_durably(self.root / name / file, record, 0o644)
        return image

    def _clear(self, name: str) -> None:
        """Remove what was being written when its writer was killed."""
        for entry in (self.root / name).glob(".*"):
            durable.remove_tree(entry)

    def _keep_last(self, name: str) -> None:
        """What the image is so far stays known by its digest."""
        with contextlib.suppress(AtollError):
            last = self._record(name)
            own = self.root / name / f"{last.image.digest}{_OWN_RECORD}"
            if not own.exists():
                durable.write_durably(own, msgspec.json.encode(last), 0o644)

    def _put(self, image: Image, content: Mapping[str, bytes]) -> None:
        final = self._files(image.name, image.digest)
        temporary = final.with_name(f".{image.digest}.new")
        durable.remove_tree(final)
        durable.make_dirs(temporary, 0o755)
        for file, data in content.items():
            durable.write_durably(temporary / file, data, 0o644)
        temporary.rename(final)
        durable.sync_dir(final.parent)

    # --- what agents need of it

    def hold(self, name: str, digest: str, owner: Owner) -> None:
        """Nobody removes this one until its owner lets go of it, or is gone. NotFound when it is gone already."""
        with self._alone():
            self.get_digest(name, digest)
            held = self.root / name / f"{digest}{_HELD}"
            if not (held / owner.mark).exists():
                durable.make_dirs(held)
                durable.write_durably(held / owner.mark, msgspec.json.encode(owner))
        steps.step("image.held")

    def tidy(self, owner: Owner, keep: Collection[tuple[str, str]]) -> None:
        """Let go of all that is not in `keep`, names with digests; then remove what nobody holds.

        What an image is now stays, held or not.
        """
        with self._alone():
            for name in self._names():
                self._clear(name)
                for digest in sorted(self._digests(name)):
                    if (name, digest) not in keep:
                        durable.remove_tree(self.root / name / f"{digest}{_HELD}" / owner.mark)
                        steps.step("image.let-go")
                        if not self._is_needed(name, digest):
                            self._remove(name, digest)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        durable.make_dirs(self.root, 0o755)
        with alone_in(self.root / _LOCK):
            yield

    def _is_needed(self, name: str, digest: str) -> bool:
        try:
            if self._record(name).image.digest == digest:
                return True
        except AtollError:
            return True  # nobody knows which one it is now
        owners = map(_owner, (self.root / name / f"{digest}{_HELD}").glob("[0-9a-f]*"))
        return any(owner is None or not is_gone(owner) for owner in owners)

    def _remove(self, name: str, digest: str) -> None:
        # Its own record goes last: what is left of a removal that was cut short is found by it.
        for path in (
            self._files(name, digest),
            self.root / name / f"{digest}{_HELD}",
            self.root / name / f"{digest}{_OWN_RECORD}",
        ):
            durable.remove_tree(path)
            steps.step("image.removed")

    def _digests(self, name: str) -> Iterator[str]:
        """All that there is something of."""
        stems = {entry.name.split(".")[0] for entry in (self.root / name).iterdir()}
        return (stem for stem in stems if re.fullmatch(DIGEST_PATTERN, stem))

    def _names(self) -> tuple[str, ...]:
        if not self.root.is_dir():
            return ()
        entries = sorted(self.root.iterdir())
        return tuple(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))

    def _files(self, name: str, digest: str) -> Path:
        return self.root / name / digest

    def _record(self, name: str) -> ImageRecord:
        if not (self.root / name).is_dir():
            raise self._not_found(name)
        try:
            return self._read(name, _RECORD)
        except FileNotFoundError as error:
            raise _damaged(name, f"{_RECORD}: {error.strerror}") from error

    def _read(self, name: str, file: str, digest: str = "") -> ImageRecord:
        """What a record says, if it is that of this image and all of it is there."""
        try:
            data = durable.read_limited(self.root / name / file, _RECORD_LIMIT)
            record = msgspec.json.decode(data, type=ImageRecord)
        except FileNotFoundError:
            raise
        except (OSError, msgspec.MsgspecError, AtollError) as error:
            raise _damaged(name, f"{file}: {error}") from error
        if record.image.name != name or record.image.digest != (digest or record.image.digest):
            raise _damaged(name, f"{file} is that of {record.image.name} {record.image.digest[:12]}")
        if not _all_there(self._files(name, record.image.digest), record.sizes):
            raise _damaged(name, "a file is missing or has another size")
        return record

    def _not_found(self, name: str) -> NotFound:
        there = ", ".join(image.name for image in self.list())
        return NotFound(
            f"image {name}: there is none of that name",
            hint=f"there are: {there}" if there else "there are none yet; the appliance comes with: atoll up",
        )


def digest_of(content: Mapping[str, bytes], image: Image) -> str:
    """One hash over all that a machine of it is: how it boots, and the names and contents of its files.

    Lengths go in too, so that nothing can move from one to the other. What it is called does not count.
    """
    what = msgspec.json.encode(structs.replace(image, name="image", description="", digest=""))
    digest = hashlib.sha256(f"{len(what)}\0".encode() + what)
    for name in sorted(content):
        digest.update(f"{name}\0{len(content[name])}\0".encode())
        digest.update(content[name])
    return digest.hexdigest()


def _owner(hold: Path) -> Owner | None:
    """Whose it is; None when that cannot be read."""
    try:
        return msgspec.json.decode(durable.read_limited(hold, _OWNER_LIMIT), type=Owner)
    except (OSError, msgspec.MsgspecError, AtollError):
        return None


def _read_source(image: str, file: str, path: Path) -> bytes:
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
