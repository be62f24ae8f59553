"""The kernel as a Debian package: found by apt, kept in a cache, unpacked and never installed.

What is in the cache is believed only if it has the hash that it should have: that of apt's signed index, or where apt
cannot say, the one that was noted when the package was got.

    <cache>/<package>.deb
    <cache>/<package>.deb.sha256    the note; only root reads and writes it

Effects: apt-get (network), files in the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from atoll.errors import AtollError, HostFailure
from atoll.system import files, host, processes
from atoll.system.failures import failing

KERNEL_MIB = 32
"""What one takes in the cache, about."""
META_PACKAGE = "linux-image-cloud-amd64"
_FILE = re.compile(r"linux-image-[0-9][A-Za-z0-9.+~-]*_[A-Za-z0-9.+~%-]+_amd64\.deb")
# As root, apt drops to a user that cannot write to our cache, and warns about it.
_NOTE_LIMIT = 128
_APT_OPTIONS = ("-q", "-o", "APT::Sandbox::User=root")

Progress = Callable[[str], None]


class Package(Struct, frozen=True):
    """A file in the cache, and what it has to be."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        return self.path.name


class Offer(Struct, frozen=True):
    """A file that apt would download."""

    file: str
    sha256: str


def cached_kernel(cache: Path) -> Path | None:
    """The newest kernel package in the cache."""
    found = [path for path in cache.glob("linux-image-*.deb") if _FILE.fullmatch(path.name)]
    return max(found, key=lambda path: version_key(path.name), default=None)


def version_key(file_name: str) -> tuple[tuple[int, int | str], ...]:
    """Orders file names so that 6.1.0-9 comes before 6.1.0-54: numbers as numbers. Pure."""
    parts = re.findall(r"[0-9]+|[^0-9]+", file_name)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def fetch_kernel(cache: Path, progress: Progress) -> Package:
    """The kernel package that apt would install, downloaded if need be; else the newest in the cache."""
    try:
        return _fetch(cache, progress)
    except AtollError as error:
        kept = cached_kernel(cache)
        if kept is None:
            raise
        progress(f"using {kept.name} from the cache: {error.brief}")
        return _known(kept)


def unpack(package: Package, workshop: Path) -> Path:
    """A directory in the workshop, which is closed to others, with the files of a package."""
    directory, copy = workshop / "package", workshop / "package.deb"
    # What is checked is a copy that nobody else can change any more.
    shutil.copyfile(package.path, copy)
    if _hash_of(copy) != package.sha256:
        raise _changed(package.path)
    processes.run_blocking(["dpkg-deb", "-x", str(copy), str(directory)], timeout_s=120)
    return directory


def parse_depends(said: str) -> str | None:
    """The kernel that the meta package stands for, from what `apt-cache depends` said. Pure."""
    found = re.search(r"^\s*Depends:\s+(linux-image-[0-9]\S*-cloud-amd64)\s*$", said, re.MULTILINE)
    return found.group(1) if found else None


def parse_uris(said: str) -> Offer | None:
    """The file that apt would download, from what `apt-get download --print-uris` said. Pure."""
    found = re.search(r"^'[^']*'\s+(\S+\.deb)\s+[0-9]+\s+SHA256:([0-9a-f]{64})\s*$", said, re.MULTILINE)
    return Offer(*found.groups()) if found and _FILE.fullmatch(found.group(1)) else None


def _fetch(cache: Path, progress: Progress) -> Package:
    for tool in ("apt-get", "apt-cache"):
        if host.find_tool(tool) is None:
            raise HostFailure(
                f"getting a kernel: {tool} is missing",
                hint=f"use a Debian host, or put the package that {META_PACKAGE} depends on into {cache}",
            )
    name = parse_depends(_said("apt-cache", "depends", META_PACKAGE))
    offer = parse_uris(_said("apt-get", *_APT_OPTIONS, "download", "--print-uris", name)) if name else None
    if name is None or offer is None:
        raise HostFailure(
            f"getting a kernel: apt knows no package {META_PACKAGE}",
            hint="run: apt-get update, then try again",
        )
    package = Package(cache / offer.file, offer.sha256)
    if package.path.exists() and _hash_of(package.path) != package.sha256:
        progress(f"{package.name} in the cache is not what apt's index says: it is downloaded again")
        package.path.unlink()
    if not package.path.exists():
        progress(f"downloading {name}")
        _download(name, package)
    _note(package)
    return package


def _known(path: Path) -> Package:
    """A package that apt says nothing of, as it was noted; or as its owner put it here, who is the same as ours."""
    try:
        noted = files.read_limited(_note_path(path), _NOTE_LIMIT).decode("ascii", "replace").strip()
    except FileNotFoundError:
        _check_closed(path)
        package = Package(path, _hash_of(path))
        _note(package)
        return package
    if _hash_of(path) != noted:
        raise _changed(path)
    return Package(path, noted)


def _check_closed(path: Path) -> None:
    for one in (path, path.parent):
        status = one.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise HostFailure(
                f"using {path.name} from the cache: others can change {one}",
                hint=f"see that it is the right one; then: chown root {one}; chmod go-w {one}",
            )


def _note(package: Package) -> None:
    path = _note_path(package.path)
    if not path.exists() or path.read_bytes() != package.sha256.encode():
        files.write_durably(path, package.sha256.encode())


def _note_path(package: Path) -> Path:
    return package.with_name(f"{package.name}.sha256")


def _hash_of(path: Path) -> str:
    with failing(f"reading {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(path: Path) -> HostFailure:
    return HostFailure(
        f"{path.name} in the cache has changed since it was got, and is not used",
        hint=f"see who did that; then remove {path}, and have apt-get update run",
    )


def _said(*argv: str) -> str:
    completed = processes.run_blocking(argv, timeout_s=60, check=False)
    return completed.stdout.decode(errors="replace")


def _download(name: str, package: Package) -> None:
    """Beside its place, then renamed: the cache never holds half a package, nor another one."""
    cache = package.path.parent
    files.make_dirs(cache, 0o755)
    argv = ["apt-get", *_APT_OPTIONS, "download", name]
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as directory:
        completed = processes.run_blocking(argv, timeout_s=600, check=False, cwd=Path(directory))
        got = Path(directory) / package.name
        if completed.returncode != 0 or not got.exists():
            raise HostFailure(
                f"downloading {name}: {_reason(completed.stderr)}",
                hint=f"check the network and run: apt-get update; or put the package into {cache}",
            )
        if _hash_of(got) != package.sha256:
            raise HostFailure(
                f"downloading {name}: what came is not what apt's index says", hint="run: apt-get update"
            )
        got.rename(package.path)
    files.sync_dir(cache)


def _reason(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]
    return (errors or lines or ["apt-get said nothing"])[0]
