"""What a real QEMU, its monitor and the records of it can do wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.machine.base import Disk, Exit, Seen
from atoll.drivers.machine.qemu import disks, record
from atoll.drivers.machine.qemu.monitor import Watch
from atoll.errors import HostFailure, TimedOut
from atoll.system import files, host, processes


async def test_a_hung_qemu_is_named_as_such_and_can_be_killed(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    processes.send_signal(lab.process(machine), signal.SIGSTOP)

    with pytest.raises(TimedOut, match=machine.name):
        await driver.power_down(machine)

    await driver.kill(machine)
    assert lab.traces(machine) == {"file console.log"}
    assert exits.all == []


async def test_a_hung_qemu_is_found_running_by_the_next_agent(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    process = lab.process(machine)
    await driver.close()
    processes.send_signal(process, signal.SIGSTOP)
    successor = lab.driver(exits)

    assert await successor.inspect([machine]) == {machine.ip: Seen(machine.ip, process.pid)}

    processes.send_signal(process, signal.SIGCONT)
    await successor.reset(machine)
    assert exits.all == []


async def test_a_qemu_that_dies_while_it_gets_a_disk_needs_no_undoing(
    lab: Any, exits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    disk = Disk("data", 1, path=tmp_path / "data.raw")
    (tmp_path / "data.raw").write_bytes(bytes(1 << 20))
    add_file = Watch.add_file

    async def dies(watch: Watch, descriptor: int, opaque: str) -> int:
        number = await add_file(watch, descriptor, opaque)
        processes.send_signal(watch.process, signal.SIGKILL)
        return number

    monkeypatch.setattr(Watch, "add_file", dies)
    monkeypatch.setattr(disks, "LET_GO_S", 0.5)

    with pytest.raises((HostFailure, TimedOut)):
        await driver.attach(machine, disk)

    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_start_that_is_cancelled_leaves_nothing(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    starting = asyncio.create_task(driver.start(machine))
    await lab.until(lambda: bool(processes.processes_in(machine.cgroup)))

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert lab.traces(machine) == set()


async def test_a_qemu_whose_record_was_never_written_is_found(lab: Any, exits: Any) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    await driver.start(machine)
    process = lab.process(machine)
    await driver.close()
    record.record_path(machine).unlink()

    successor = lab.driver(exits)

    assert await successor.inspect([machine]) == {machine.ip: Seen(machine.ip, process.pid)}
    await successor.kill(machine)
    assert not processes.alive(process)


@pytest.mark.parametrize(
    ("change", "found"), [({"boot_id": "another"}, None), ({"started": 1}, Exit.CRASHED)]
)
async def test_a_stranger_with_the_number_of_a_dead_qemu_is_left_alone(
    lab: Any, exits: Any, change: dict[str, Any], found: Exit | None
) -> None:
    driver, machine = lab.driver(exits), lab.machine()
    stranger = processes.identify(processes.spawn_blocking(processes.Launch(("sleep", "60"))))
    assert stranger is not None
    try:
        known = {"pid": stranger.pid, "started": stranger.started, "boot_id": host.boot_id(), **change}
        record.prepare(machine)
        record.record_path(machine).write_text(json.dumps(known))

        seen = await driver.inspect([machine])
        await driver.kill(machine)

        assert seen.get(machine.ip) == (found and Seen(machine.ip, stranger.pid, found))
        assert processes.alive(stranger)
    finally:
        processes.send_signal(stranger, signal.SIGKILL)


async def test_a_microvm_has_a_power_button_and_reports_its_panic(microvm_lab: Any, exits: Any) -> None:
    driver, machine = microvm_lab.driver(exits), microvm_lab.machine()
    await driver.start(machine)
    await microvm_lab.booted(machine)
    await driver.power_down(machine)
    assert await exits.first() == (machine.ip, Exit.POWERED_OFF)

    exits.all.clear()
    await driver.start(machine)
    await microvm_lab.until_boots(machine, 2)
    await microvm_lab.panic(driver, machine)
    assert await exits.first() == (machine.ip, Exit.CRASHED)


class FakeQemu:
    """A monitor that says what it is told, and a process that sleeps beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = 0
        self._joined = asyncio.Condition()
        self.commands: list[str] = []
        self.obedient = True
        self._writer: asyncio.StreamWriter | None = None
        process = processes.identify(processes.spawn_blocking(processes.Launch(("sleep", "60"))))
        assert process is not None
        self.process = process

    async def serve(self) -> None:
        self._server = await asyncio.start_unix_server(self._talk, sock=files.listen_unix(self.path))

    def say(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def connected(self, times: int) -> None:
        async with self._joined:
            await self._joined.wait_for(lambda: self.connections >= times)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()

    async def close(self) -> None:
        self._server.close()
        processes.send_signal(self.process, signal.SIGKILL)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._joined:
            self.connections += 1
            self._joined.notify_all()
        self._writer = writer
        self.say({"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}}, "capabilities": []}})
        # Requests are not divided by line ends; each is short enough to come in one piece.
        while request := await reader.read(4096):
            self._answer(json.loads(request))
        writer.close()

    def _answer(self, request: dict[str, Any]) -> None:
        self.commands.append(request["execute"])
        identity = {"id": request["id"]} if "id" in request else {}
        self.say({"return": {"status": "running"}, **identity})
        if request["execute"] == "quit" and self.obedient:
            processes.send_signal(self.process, signal.SIGKILL)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeQemu]:
    fake = FakeQemu(tmp_path / "monitor.sock")
    await fake.serve()
    yield fake
    await fake.close()


@pytest.fixture
async def ends() -> list[Exit]:
    return []


@pytest.fixture
async def watch(fake: FakeQemu, ends: list[Exit]) -> AsyncIterator[Watch]:
    watch = Watch("web", fake.path, fake.process, lambda _, reason: ends.append(reason))
    await watch.connect(5)
    watch.begin()
    yield watch
    await watch.stop()


async def test_a_lost_monitor_is_found_again_and_is_no_exit(
    fake: FakeQemu, watch: Watch, ends: list[Exit]
) -> None:
    for connections in (2, 3):
        fake.hang_up()
        async with asyncio.timeout(5):
            await fake.connected(connections)
        await watch.execute("system_powerdown")

    assert ends == []
    assert fake.commands.count("system_powerdown") == 2


@pytest.mark.parametrize("obedient", [True, False])
async def test_a_qemu_whose_guest_ended_quits_or_is_made_to(
    fake: FakeQemu, watch: Watch, ends: list[Exit], obedient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fake.obedient = obedient
    shutdown = {"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-shutdown"}, "timestamp": {}}
    fake.say(shutdown)
    fake.say(shutdown)

    await watch.done()

    assert ends == [Exit.POWERED_OFF]
    assert "quit" in fake.commands
    assert not processes.alive(fake.process)
    await watch.stop()
    gc.collect()  # what nobody retrieved complains now
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_process_that_dies_without_a_word_has_crashed(
    fake: FakeQemu, watch: Watch, ends: list[Exit]
) -> None:
    os.kill(fake.process.pid, signal.SIGKILL)

    await watch.done()

    assert ends == [Exit.CRASHED]
