"""Folders in virtual machines: who serves them is as small as its guest, and ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atoll.drivers.machine.base import Machine, Output, SharedFolder
from atoll.drivers.machine.qemu import folders as served
from atoll.errors import Conflict, HostFailure
from atoll.model.command import Command
from atoll.model.vm import MachineType
from atoll.system import folders, landlock, libc, mounts, processes

OWNER = 12345
PATIENCE_S = 30


@pytest.fixture
async def lab(
    request: pytest.FixtureRequest, tmp_path: Path, make_lab: Any, opened: Any
) -> AsyncIterator[Any]:
    async with opened(make_lab("agent", request, tmp_path)) as lab:
        yield lab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir(0o755)
    (made / "hello").write_text("good morning\n")
    for path in (made, made / "hello"):
        os.chown(path, OWNER, OWNER)
    return made


def shared(path: Path, name: str = "data", target: str = "/data", *, read_only: bool = False) -> SharedFolder:
    seen = folders.look(path)
    return SharedFolder(name, path, target, read_only, seen.uid, seen.gid, seen.node)


def with_folders(machine: Machine, *some: SharedFolder) -> Machine:
    return structs.replace(machine, folders=some)


async def tell(driver: Any, machine: Machine, script: str) -> tuple[int, str]:
    process = await driver.exec(machine, Command(("/bin/sh", "-c", script)))
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        while isinstance(come := await process.read(), Output):
            said += come.data
    await process.close()
    return come, said.decode(errors="replace")


def server(machine: Machine, name: str = "data") -> processes.Pid:
    return served.servers_of(machine)[name]


def of(process: processes.Pid, file: str) -> str:
    return Path(f"/proc/{process.pid}/{file}").read_text()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_who_serves_a_folder_is_the_machines_user_alone_and_sees_that_folder_alone(
    lab: Any, exits: Any, folder: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    one = server(machine)
    status = dict(line.split(":\t", 1) for line in of(one, "status").splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(machine.uid)}
    assert (status["Groups"].strip(), status["NoNewPrivs"], status["Seccomp"]) == ("", "1", "2")
    assert int(status["CapBnd"], 16) == int(status["CapAmb"], 16) == 0
    assert [of(one, name).split() for name in ("uid_map", "gid_map")] == [["0", str(machine.uid), "1"]] * 2
    for name in ("user", "mnt", "pid", "net", "ipc", "uts"):
        assert os.readlink(f"/proc/{one.pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"), name
    root = Path(f"/proc/{one.pid}/root")
    assert [path.name for path in root.iterdir()] == ["hello"]
    # Above that is nothing any more either.
    assert mounts.inside(one, lambda: (os.listdir("/start"), os.listdir("/dev"))) == ([], ["null"])
    assert of(one, "oom_score_adj").strip() == "1000"
    # It has what it was given: no file of the host, and nothing of another machine.
    opened = {os.readlink(entry) for entry in Path(f"/proc/{one.pid}/fd").iterdir()}
    plain = {path for path in opened if path.startswith("/") and not path.startswith("/memfd:")}
    assert plain == {"/dev/null", "/folder", f"/{one.pid}/fd", f"/{one.pid}/task"}, opened


async def test_what_is_mounted_in_a_folder_is_not_there(lab: Any, exits: Any, folder: Path) -> None:
    (folder / "sub").mkdir()
    libc.mount("none", str(folder / "sub"), "tmpfs", 0, "size=64k")
    try:
        (folder / "sub/secret").write_text("of another file system")
        driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
        await driver.start(machine)
        assert await tell(driver, machine, "ls /data/sub") == (0, "")
        await driver.kill(machine)
    finally:
        mounts.unmount(folder / "sub")


async def test_other_users_of_a_guest_have_what_everybody_has_and_create_nothing(
    lab: Any, exits: Any, folder: Path
) -> None:
    (folder / "own").write_text("secret")
    (folder / "own").chmod(0o600)
    os.chown(folder / "own", OWNER, OWNER)
    folder.chmod(0o777)
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    await tell(driver, machine, "echo 'ann::1000:1000::/:/bin/sh' >>/etc/passwd; ls /bin >/dev/null")

    async def as_ann(words: str) -> tuple[int, str]:
        return await tell(driver, machine, f"su ann -c '{words}'")

    assert await as_ann("cat /data/hello") == (0, "good morning\n")
    for attempt in ("cat /data/own", "echo x >/data/made", "mkdir /data/made", "echo x >/data/hello"):
        status, said = await as_ann(attempt)
        assert status != 0, (attempt, said)
    assert sorted(path.name for path in folder.iterdir()) == ["hello", "own"]


async def test_the_next_agent_finds_the_folder_served_and_ends_all_of_it(
    lab: Any, exits: Any, new_exits: Any, folder: Path
) -> None:
    first, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await first.start(machine)
    before = server(machine)
    await first.close()
    second, plain = lab.driver(new_exits), with_folders(machine)
    seen = (await second.inspect([plain]))[machine.ip]
    assert (seen.exit, seen.lost_folders) == (None, ())
    assert server(plain) == before
    assert await tell(second, plain, "cat /data/hello") == (0, "good morning\n")
    await second.kill(plain)
    assert not processes.alive(before)
    assert not lab.traces(machine) - lab.kept


async def test_a_record_that_was_not_written_any_more_does_not_make_a_machine_of_who_serves_its_folder(
    lab: Any, exits: Any, folder: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    with served.Servers().started(machine):
        assert server(machine)
        assert await driver.inspect([machine]) == {}
    await driver.kill(machine)
    assert not lab.traces(machine) - lab.kept


async def test_who_serves_a_folder_ends_with_its_qemu_whoever_ended_that(
    lab: Any, exits: Any, folder: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    one = server(machine)
    await driver.close()
    await lab.end_process(None, machine)
    await until(lambda: not processes.alive(one))


async def test_a_server_that_dies_is_told_the_machine_goes_on_and_its_next_start_has_the_folder(
    lab: Any, exits: Any, folder: Path
) -> None:
    told: list[str] = []
    driver = lab.driver(exits)
    driver._on_lost = told.append
    other = folder.parent / "other"
    other.mkdir()
    os.chown(other, OWNER, OWNER)
    machine = with_folders(lab.machine(), shared(folder), shared(other, "other", "/other"))
    await driver.start(machine)
    assert await tell(driver, machine, "cat /data/hello; echo x >/other/new") == (0, "good morning\n")
    processes.send_signal(server(machine), signal.SIGKILL)
    await until(lambda: bool(told))
    assert told == [machine.ip]
    seen = (await driver.inspect([machine]))[machine.ip]
    assert (seen.exit, seen.lost_folders) == (None, ("data",))
    assert await tell(driver, machine, "cat /other/new") == (0, "x\n")
    await driver.kill(machine)
    await driver.start(machine)
    assert (await driver.inspect([machine]))[machine.ip].lost_folders == ()
    assert await tell(driver, machine, "cat /data/hello") == (0, "good morning\n")


async def test_a_guest_boots_though_nobody_serves_its_folder_any_more(
    lab: Any, exits: Any, folder: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    await tell(driver, machine, "true")
    processes.send_signal(server(machine), signal.SIGKILL)
    await driver.reset(machine)
    await lab.until_boots(machine, 2)
    assert await tell(driver, machine, "echo up") == (0, "up\n")


async def test_a_machine_with_a_folder_is_held_still_and_goes_on_but_its_memory_is_not_kept(
    lab: Any, exits: Any, folder: Path
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    assert await tell(driver, machine, "cat /data/hello") == (0, "good morning\n")
    with pytest.raises(Conflict, match="who serves its folder data") as refusal:
        driver.check_savable(with_folders(machine))
    assert "atoll vm suspend" in refusal.value.hint
    await driver.freeze(machine)
    await driver.thaw(machine)
    assert await tell(driver, machine, "echo on >/data/on") == (0, "")
    assert (folder / "on").read_text() == "on\n"


async def test_a_microvm_has_no_folders(lab: Any, exits: Any, folder: Path) -> None:
    machine = structs.replace(lab.machine(), machine_type=MachineType.MICROVM, folders=(shared(folder),))
    with pytest.raises(Conflict, match="microvm"):
        await lab.driver(exits).start(machine)
    assert not lab.traces(machine) - lab.kept


async def test_a_host_without_virtiofsd_says_so_and_what_to_do(
    lab: Any, exits: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    monkeypatch.setattr(served, "PROGRAM", tmp_path / "virtiofsd")
    assert "apt-get install qemu-system-common" in driver.share_problem()
    with pytest.raises(Conflict, match="there is no .*virtiofsd"):
        await driver.start(machine)
    assert not lab.traces(machine) - lab.kept


async def test_a_server_that_cannot_start_is_the_failure_in_its_own_words(
    lab: Any, exits: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    monkeypatch.setattr(served, "_OPTIONS", "sandbox=none")
    with pytest.raises(HostFailure, match="sandbox"):
        await driver.start(machine)
    assert not lab.traces(machine) - lab.kept


@pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")
async def test_a_folder_can_be_used_without_landlock_too(
    lab: Any, exits: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    assert await tell(driver, machine, "cat /data/hello; echo x >/data/new") == (0, "good morning\n")


async def test_a_guest_that_looks_at_more_files_than_can_be_open_still_opens_others(
    lab: Any, exits: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_OPEN_FILES", 256)
    for number in range(2000):
        (folder / f"file-{number}").touch()
    driver, machine = lab.driver(exits), with_folders(lab.machine(), shared(folder))
    await driver.start(machine)
    status, said = await tell(driver, machine, "ls -l /data | wc -l; cat /data/hello")
    assert (status, said.split(maxsplit=1)) == (0, ["2002", "good morning\n"])
