"""The kernel as a Debian package: found by apt, kept in a cache, unpacked and never installed.

Effects: apt-get (network), files in the cache.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from atoll.errors import AtollError, HostFailure
from atoll.system import files, host, processes

META_PACKAGE = "linux-image-cloud-amd64"
_FILE = re.compile(r"linux-image-[0-9][A-Za-z0-9.+~-]*_[A-Za-z0-9.+~%-]+_amd64\.deb")
# As root, apt drops to a user that cannot write to our cache, and warns about it.
_APT_OPTIONS = ("-q", "-o", "APT::Sandbox::User=root")

Progress = Callable[[str], None]


def cached_kernel(cache: Path) -> Path | None:
    """The newest kernel package in the cache."""
    found = [path for path in cache.glob("linux-image-*.deb") if _FILE.fullmatch(path.name)]
    return max(found, key=lambda path: version_key(path.name), default=None)


def version_key(file_name: str) -> tuple[tuple[int, int | str], ...]:
    """Orders file names so that 6.1.0-9 comes before 6.1.0-54: numbers as numbers. Pure."""
    parts = re.findall(r"[0-9]+|[^0-9]+", file_name)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def fetch_kernel(cache: Path, progress: Progress) -> Path:
    """The kernel package that apt would install, downloaded if need be; else the newest in the cache."""
    try:
        return _fetch(cache, progress)
    except AtollError as error:
        kept = cached_kernel(cache)
        if kept is None:
            raise
        progress(f"using {kept.name} from the cache: {error.brief}")
        return kept


def unpack(package: Path, workshop: Path) -> Path:
    """A directory in the workshop with the files of a package."""
    directory = workshop / "package"
    processes.run_blocking(["dpkg-deb", "-x", str(package), str(directory)], timeout_s=120)
    return directory


def parse_depends(said: str) -> str | None:
    """The kernel that the meta package stands for, from what `apt-cache depends` said. Pure."""
    found = re.search(r"^\s*Depends:\s+(linux-image-[0-9]\S*-cloud-amd64)\s*$", said, re.MULTILINE)
    return found.group(1) if found else None


def parse_uris(said: str) -> str | None:
    """The file that apt would download, from what `apt-get download --print-uris` said. Pure."""
    found = re.search(r"^'[^']*'\s+(\S+\.deb)\s", said, re.MULTILINE)
    return found.group(1) if found and _FILE.fullmatch(found.group(1)) else None


def _fetch(cache: Path, progress: Progress) -> Path:
    for tool in ("apt-get", "apt-cache"):
        if host.find_tool(tool) is None:
            raise HostFailure(
                f"getting a kernel: {tool} is missing",
                hint=f"use a Debian host, or put the package that {META_PACKAGE} depends on into {cache}",
            )
    name = parse_depends(_said("apt-cache", "depends", META_PACKAGE))
    uri = parse_uris(_said("apt-get", *_APT_OPTIONS, "download", "--print-uris", name)) if name else None
    if name is None or uri is None:
        raise HostFailure(
            f"getting a kernel: apt knows no package {META_PACKAGE}",
            hint="run: apt-get update, then try again",
        )
    package = cache / uri
    if not package.exists():
        progress(f"downloading {name}")
        _download(name, package)
    return package


def _said(*argv: str) -> str:
    completed = processes.run_blocking(argv, timeout_s=60, check=False)
    return completed.stdout.decode(errors="replace")


def _download(name: str, package: Path) -> None:
    """Beside its place, then renamed: the cache never holds half a package."""
    files.make_dirs(package.parent, 0o755)
    argv = ["apt-get", *_APT_OPTIONS, "download", name]
    with tempfile.TemporaryDirectory(dir=package.parent, prefix="download-") as directory:
        completed = processes.run_blocking(argv, timeout_s=600, check=False, cwd=Path(directory))
        if completed.returncode != 0 or not (Path(directory) / package.name).exists():
            raise HostFailure(
                f"downloading {name}: {_reason(completed.stderr)}",
                hint=f"check the network and run: apt-get update; or put the package into {package.parent}",
            )
        (Path(directory) / package.name).rename(package)
    files.sync_dir(package.parent)


def _reason(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]
    return (errors or lines or ["apt-get said nothing"])[0]
