"""Folders of the host in machines: the same files on both sides, and no way out of them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import CanShare, Machine, Output, SharedFolder
from atoll.errors import AtollError, Conflict
from atoll.model.command import Command
from atoll.system import folders

CONTAINERS = ["lxc", "docker"]
KINDS = ["agent", *CONTAINERS]
"""Virtual machines have folders by the agent in their guests."""
AND_PODMAN = pytest.mark.parametrize("lab", [*KINDS, "podman"], indirect=True)
"""It mounts folders in another way than Docker."""
OWNER = 12345
PATIENCE_S = 30


@pytest.fixture(params=KINDS)
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab(request.param, request, tmp_path)) as lab:
        yield lab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir(0o755)
    (made / "hello").write_text("good morning\n")
    for path in (made, made / "hello"):
        os.chown(path, OWNER, OWNER)
    return made


def shared(path: Path, target: str = "/data", *, read_only: bool = False) -> SharedFolder:
    seen = folders.look(path)
    return SharedFolder("data", path, target, read_only, seen.uid, seen.gid, seen.node)


def with_folders(machine: Machine, *some: SharedFolder) -> Machine:
    return structs.replace(machine, folders=some)


class Guest:
    def __init__(self, lab: Any, driver: Any, machine: Machine) -> None:
        self.lab, self.driver, self.machine = lab, driver, machine

    async def tell(self, script: str, **more: Any) -> tuple[int, str]:
        """The status and all output of a script in it. busybox is its only program."""
        words = f'PATH=/x; bb() {{ /bin/busybox "$@"; }}; {script}'
        process = await self.driver.exec(self.machine, Command(("/bin/sh", "-c", words), **more))
        said = b""
        async with asyncio.timeout(PATIENCE_S):
            while isinstance(come := await process.read(), Output):
                said += come.data
        await process.close()
        return come, said.decode(errors="replace")


async def started(lab: Any, exits: Any, *some: SharedFolder, number: int = 5) -> Guest:
    driver, machine = lab.driver(exits), with_folders(lab.machine(number), *some)
    assert isinstance(driver, CanShare)
    assert driver.share_problem() == ""
    await driver.start(machine)
    await lab.booted(machine)
    return Guest(lab, driver, machine)


async def test_both_sides_see_the_same_files_also_after_a_reset_and_the_owner_is_root_of_the_guest(
    lab: Any, exits: Any, folder: Path
) -> None:
    guest = await started(lab, exits, shared(folder))
    assert await guest.tell("bb cat /data/hello; bb stat -c '%u %g %a' /data/hello") == (
        0,
        "good morning\n0 0 644\n",
    )
    assert await guest.tell("echo hi >/data/new; bb chmod 750 /data/new; bb mkdir /data/sub") == (0, "")
    status = (folder / "new").stat()
    assert (folder / "new").read_text() == "hi\n"
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (OWNER, OWNER, 0o750)
    assert (folder / "sub").stat().st_uid == OWNER
    (folder / "later").write_text("later\n")
    assert await guest.tell("bb cat /data/later") == (0, "later\n")
    await guest.driver.reset(guest.machine)
    await lab.until_boots(guest.machine, 2)
    assert await guest.tell("bb cat /data/later") == (0, "later\n")


async def test_a_guest_is_the_owner_and_nobody_else_and_no_program_or_device_counts(
    lab: Any, exits: Any, folder: Path
) -> None:
    (folder / "roots").write_text("secret")
    (folder / "roots").chmod(0o600)
    (folder / "everybodys").write_text("open")
    guest = await started(lab, exits, shared(folder))
    assert await guest.tell("bb stat -c %u /data/roots; bb cat /data/everybodys") == (0, "65534\nopen")
    for attempt in (
        "bb cat /data/roots",
        "bb chown 0 /data/roots",
        "bb chmod 666 /data/roots",
        "echo x >/data/everybodys",
        "bb chown 1 /data/hello",
    ):
        status, said = await guest.tell(attempt)
        assert status != 0, (attempt, said)
    assert (folder / "roots").stat().st_uid == 0
    assert (folder / "everybodys").read_text() == "open"
    status, said = await guest.tell(
        "while read -r line; do case $line in *' /data '*) echo $line;; esac; done </proc/mounts"
    )
    assert status == 0
    assert {"nosuid", "nodev"} <= set(said.split()[3].split(",")), said
    await guest.tell("bb cp /bin/busybox /data/suid; bb chmod 4755 /data/suid")
    assert (folder / "suid").stat().st_uid == OWNER
    status, said = await guest.tell("bb mknod /data/null c 1 3 && echo x >/data/null")
    assert status != 0, said


@AND_PODMAN
async def test_what_is_read_only_cannot_be_written_to_nor_mounted_anew(
    lab: Any, exits: Any, folder: Path
) -> None:
    guest = await started(lab, exits, shared(folder, read_only=True))
    assert await guest.tell("bb cat /data/hello") == (0, "good morning\n")
    for attempt in (
        "echo x >/data/hello",
        "bb rm /data/hello",
        "bb mount -o remount,rw /data && echo x >/data/hello",
        "bb mount -o remount,bind,rw /data && echo x >/data/hello",
        "bb umount /data && echo x >/data/hello && bb cat /data/hello && exit 1",
    ):
        await guest.tell(attempt)
        assert (folder / "hello").read_text() == "good morning\n", attempt


async def test_nothing_outside_is_reached_from_inside(
    lab: Any, exits: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the host's own")
    (folder / "up").symlink_to("../secret")
    (folder / "absolute").symlink_to(tmp_path / "secret")
    (folder / "sub").mkdir()
    os.chown(folder / "sub", OWNER, OWNER)
    guest = await started(lab, exits, shared(folder))
    for path in ("/data/../secret", "/data/up", "/data/absolute", "/data/sub/../../secret"):
        status, said = await guest.tell(f"bb cat {path}")
        assert status != 0, path
        assert "host's own" not in said
    # What is moved out of the folder under a guest that is in it does not lead further up.
    inside = asyncio.ensure_future(
        guest.tell("cd /data/sub && echo in >here; bb sleep 2; bb cat ../secret; bb ls ..")
    )
    for _ in range(100):
        if (folder / "sub/here").exists():
            break
        await asyncio.sleep(0.05)
    (folder / "sub").rename(tmp_path / "moved")
    _, said = await inside
    assert "host's own" not in said
    assert "secret" not in said.replace("can't open '../secret'", "")


@pytest.mark.parametrize("lab", CONTAINERS, indirect=True)
async def test_a_place_that_the_guest_made_a_link_is_refused(lab: Any, exits: Any, folder: Path) -> None:
    guest = await started(lab, exits)
    for link, target in (("/srv", "/etc"), ("/out", "/../../../../../tmp")):
        await guest.tell(f"bb ln -s {target} {link}")
    await guest.driver.kill(guest.machine)
    for target in ("/srv", "/srv/data", "/out/data"):
        with pytest.raises(AtollError, match="link"):
            await guest.driver.start(with_folders(guest.machine, shared(folder, target)))
    await guest.driver.start(guest.machine)


async def test_a_folder_that_is_gone_or_a_link_by_now_is_not_started_with(
    lab: Any, exits: Any, folder: Path, tmp_path: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(Conflict, match=f"folder {folder} is gone"):
        await driver.start(machine)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Conflict, match="symbolic link"):
        await driver.start(machine)
    folder.unlink()
    folder.mkdir()
    with pytest.raises(Conflict, match="replaced"):
        await driver.start(machine)
    await driver.kill(machine)
    assert not lab.traces(machine) - lab.kept
    folder.rmdir()
    (tmp_path / "elsewhere").rename(folder)
    await driver.start(machine)
    await lab.booted(machine)


async def test_a_folder_that_vanishes_is_empty_to_its_guest_and_the_machine_ends_as_ever(
    lab: Any, exits: Any, folder: Path
) -> None:
    guest = await started(lab, exits, shared(folder))
    (folder / "hello").unlink()
    folder.rmdir()
    status, _ = await guest.tell("echo x >/data/new")
    assert status != 0
    await guest.driver.kill(guest.machine)
    assert not lab.traces(guest.machine) - lab.kept


async def test_what_a_guest_leaves_is_there_for_the_next_and_without_the_folder_it_is_not(
    lab: Any, exits: Any, folder: Path
) -> None:
    guest = await started(lab, exits, shared(folder))
    await guest.tell("echo mine >/data/kept")
    await guest.driver.kill(guest.machine)
    await guest.driver.start(with_folders(guest.machine, shared(folder, "/other/place", read_only=True)))
    await lab.until_boots(guest.machine, 2)
    assert await guest.tell("bb cat /other/place/kept") == (0, "mine\n")
    await guest.driver.kill(guest.machine)
    await guest.driver.start(with_folders(guest.machine))
    await lab.until_boots(guest.machine, 3)
    assert (await guest.tell("bb ls /other/place 2>/dev/null"))[1] == ""
    assert (folder / "kept").read_text() == "mine\n"
