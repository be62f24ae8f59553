"""A kernel package in the cache that somebody has changed is never booted."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.images import packages

CACHE = Path(os.environ.get("ATOLL_CACHE") or Path(__file__).parents[3] / ".cache")

APT_GET = """#!/bin/sh
case "$*" in
*--print-uris*) echo "'http://host/pool/{file}' {file} {size} SHA256:{sha256}" ;;
*) cp {archive} {file} ;;
esac
"""
APT_CACHE = '#!/bin/sh\necho "  Depends: linux-image-6.1.0-54-cloud-amd64"\n'
NOTHING = "#!/bin/sh\nexit 100\n"


@pytest.fixture
def kernel() -> Path:
    found = packages.cached_kernel(CACHE)
    if found is None:
        pytest.skip("no kernel package in the cache")
    return found


class Apt:
    """An apt of the test's own: an archive with one package."""

    def __init__(self, directory: Path, package: Path) -> None:
        self.directory = directory
        self.archive = directory / "archive.deb"
        shutil.copyfile(package, self.archive)
        self.told = {
            "file": package.name,
            "size": package.stat().st_size,
            "sha256": hashlib.sha256(package.read_bytes()).hexdigest(),
            "archive": self.archive,
        }
        self._write("apt-cache", APT_CACHE)
        self._write("apt-get", APT_GET.format(**self.told))

    def goes(self) -> None:
        """From now on it can say nothing."""
        self._write("apt-cache", NOTHING)
        self._write("apt-get", NOTHING)

    def _write(self, name: str, script: str) -> None:
        (self.directory / name).write_text(script)
        (self.directory / name).chmod(0o755)


@pytest.fixture
def apt(tmp_path: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Apt(tmp_path / "bin", kernel)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir(0o755)
    return tmp_path / "cache"


def change(package: Path) -> None:
    """One byte in the middle of it."""
    with package.open("r+b") as file:
        file.seek(package.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_a_changed_package_is_fetched_again_and_that_is_said(apt: Apt, cache: Path):
    said: list[str] = []
    package = packages.fetch_kernel(cache, said.append)
    assert (package.sha256, said) == (apt.told["sha256"], ["downloading linux-image-6.1.0-54-cloud-amd64"])
    change(package.path)
    said.clear()
    assert packages.fetch_kernel(cache, said.append) == package
    assert "is not what apt's index says: it is downloaded again" in said[0]
    assert hashlib.sha256(package.path.read_bytes()).hexdigest() == package.sha256


def test_what_an_archive_sends_in_place_of_it_is_refused(apt: Apt, cache: Path):
    change(apt.archive)
    with pytest.raises(HostFailure, match="what came is not what apt's index says"):
        packages.fetch_kernel(cache, lambda _: None)
    assert list(cache.iterdir()) == []


def test_where_apt_cannot_say_a_changed_package_is_refused(apt: Apt, cache: Path):
    package = packages.fetch_kernel(cache, lambda _: None)
    note = package.path.with_name(f"{package.name}.sha256")
    assert note.stat().st_mode & 0o777 == 0o600
    apt.goes()
    assert packages.fetch_kernel(cache, lambda _: None) == package
    change(package.path)
    with pytest.raises(HostFailure, match="has changed since it was got, and is not used"):
        packages.fetch_kernel(cache, lambda _: None)


def test_a_package_that_changes_after_it_was_checked_is_not_unpacked(apt: Apt, cache: Path, tmp_path: Path):
    package = packages.fetch_kernel(cache, lambda _: None)
    change(package.path)
    (tmp_path / "workshop").mkdir(0o700)
    with pytest.raises(HostFailure, match="has changed"):
        packages.unpack(package, tmp_path / "workshop")
    assert not (tmp_path / "workshop" / "package").exists()


def test_a_package_that_was_put_there_by_hand_is_believed_only_if_nobody_else_could_have(
    apt: Apt, cache: Path, kernel: Path
):
    apt.goes()
    shutil.copyfile(kernel, cache / kernel.name)
    cache.chmod(0o777)
    with pytest.raises(HostFailure, match="others can change"):
        packages.fetch_kernel(cache, lambda _: None)
    cache.chmod(0o755)
    assert packages.fetch_kernel(cache, lambda _: None).sha256 == apt.told["sha256"]
    change(cache / kernel.name)
    with pytest.raises(HostFailure, match="has changed"):
        packages.fetch_kernel(cache, lambda _: None)
