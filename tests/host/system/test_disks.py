"""Disk images with the real tools: what is on them survives, and what could lead elsewhere is not followed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from atoll.errors import Conflict, HostFailure
from atoll.system import disks

UID = 0x6A00_0005
SECRET = b"what only root may read"


async def made(path: Path, size_mib: int = 16, *, ext4: bool = True) -> Path:
    async with disks.in_the_making(path, UID) as part:
        await disks.set_size(part, size_mib)
        if ext4:
            await disks.make_ext4(part)
    return path


def debugfs(path: Path, command: str) -> str:
    done = subprocess.run(
        ["/sbin/debugfs", "-w", "-R", command, path], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory as that of a VM's volumes: nobody but root gets through."""
    directory = tmp_path / "10.0.0.5"
    directory.mkdir(0o700)
    return directory


async def test_what_is_on_a_file_system_survives_growing_and_shrinking(closed: Path, tmp_path: Path) -> None:
    path = await made(closed / "data.raw")
    (tmp_path / "letter").write_bytes(os.urandom(100_000))
    debugfs(path, f"write {tmp_path}/letter letter")
    await disks.set_size(path, 64)
    await disks.resize_ext(path)
    await disks.resize_ext(path, 12)
    await disks.set_size(path, 12)
    debugfs(path, f"dump letter {tmp_path}/again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "letter").read_bytes()
    assert path.stat().st_size == 12 << 20


async def test_what_is_in_use_is_not_cut_off(closed: Path, tmp_path: Path) -> None:
    path = await made(closed / "data.raw", 32)
    before = await disks.least_mib(path)
    (tmp_path / "big").write_bytes(os.urandom(10 << 20))
    debugfs(path, f"write {tmp_path}/big big")
    assert await disks.least_mib(path) >= before + 10
    with pytest.raises(HostFailure, match="resize2fs"):
        await disks.resize_ext(path, 4)


async def test_a_damaged_file_system_is_told_as_such(closed: Path) -> None:
    path = await made(closed / "data.raw")
    with path.open("r+b") as file:
        file.seek(1024 + 0x60)
        file.write(b"\xff" * 900)
    with pytest.raises(HostFailure):
        await disks.resize_ext(path)


async def test_what_holds_no_file_system_is_not_measured(closed: Path) -> None:
    with pytest.raises(Conflict, match="there is no ext4 file system on it"):
        await disks.least_mib(await made(closed / "data.raw", ext4=False))


async def test_a_qcow2_file_that_names_another_is_not_followed(closed: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET.ljust(1 << 20, b"\0"))
    evil = closed / "evil.qcow2"
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", tmp_path / "secret", evil]
    subprocess.run(command, check=True)
    disks.give(evil, UID)
    target = await made(closed / "target.raw", ext4=False)
    with pytest.raises(HostFailure, match="names another file"):
        await disks.convert(evil, "qcow2", target, "raw")
    with pytest.raises(HostFailure, match="names another file"):
        await disks.grow_qcow2(evil, 8)
    assert SECRET not in target.read_bytes()


async def test_tools_could_not_read_what_only_root_may_even_if_they_were_told_to(
    closed: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    disk = await made(closed / "data.raw", ext4=False)
    with pytest.raises(HostFailure, match="[Pp]ermission denied"):
        await disks._run(["cp", str(secret)], [disk])
    assert SECRET not in disk.read_bytes()


async def test_what_fails_half_way_leaves_nothing(closed: Path) -> None:
    with pytest.raises(RuntimeError):
        async with disks.in_the_making(closed / "data.raw", UID) as part:
            await disks.set_size(part, 4)
            raise RuntimeError
    assert list(closed.iterdir()) == []


async def test_a_disk_in_memory_is_gone_with_its_last_user() -> None:
    descriptor = disks.allocate_in_memory("scratch", 8, UID)
    path = Path(f"/proc/self/fd/{descriptor}")
    try:
        await disks.make_ext4(path)
        assert disks.ext_at(path) is not None
    finally:
        os.close(descriptor)
    assert not path.exists()
