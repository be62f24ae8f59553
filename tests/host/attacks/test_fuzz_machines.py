"""Fuzz of what an agent hears from its machines: their private line, their monitor, their console.

Over the real sockets and files, with a hostile machine at the other end: a guest that says what it likes, and a QEMU
that its guest has taken over. The console's bytes go all the way, through a real agent to whoever looks at them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import attack_figures
from atoll.drivers.machine.base import Machine, Output
from atoll.drivers.machine.lxc.console import LogConsole as LxcConsole
from atoll.drivers.machine.qemu import channel, hands, record
from atoll.drivers.machine.qemu.console import LogConsole as QemuConsole
from atoll.drivers.machine.qemu.monitor import Monitor, Watch
from atoll.errors import AtollError
from atoll.model.command import Command
from atoll.model.network import Subnet
from atoll.system import namespaces, processes
from forges.machine import ConsoleForge, HandsForge, LineForge, MonitorForge
from fuzz_shares import TIMEOUT_S, inputs_of
from node_labs import PORT, Node, a_site
from samples import a_machine
from vitals import Examination, Vitals

pytestmark = pytest.mark.timeout(TIMEOUT_S)

LAN = Subnet("lan", "10.64.0.0/24", "10.64.0.1")
AT_ONCE = 8
WARM_UP = 500
PATIENCE_S = 0.05
LINES = 40
"""Of a monitor, between two commands."""
PIECES = 100
"""Of a console, before whoever looks has seen them."""
WATCHED_S = 1.0
HANDSHAKE = b"\r\n".join(
    (
        b"GET /v1/vms/noisy/console?history=false HTTP/1.1",
        b"Host: m",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        b"",
        b"",
    )
)
GREETING = {"QMP": {"version": {"qemu": {"major": 8}}, "capabilities": []}}


class Self:
    """This process, which plays the agent."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.WARNING)
        gc.collect()
        self.before = Vitals.of(os.getpid())
        self._began = time.monotonic()

    def passed(self, parser: str, inputs: int, answered: int) -> None:
        seconds = time.monotonic() - self._began
        gc.collect()
        after = Vitals.of(os.getpid())
        assert after.harm_since(self.before) == []
        assert [one.getMessage() for one in self._caplog.records if one.levelno >= logging.ERROR] == []
        attack_figures.tell_fuzz(
            parser, inputs=inputs, answered=answered, before=self.before, after=after, seconds=seconds
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = a_machine(directory=tmp_path)
    record.directory(found).mkdir()
    return found


@contextlib.asynccontextmanager
async def listening(
    path: Path, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    talking: set[asyncio.Task[None]] = set()

    async def until_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await talk(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def over(task: asyncio.Task[None]) -> None:
            talking.discard(task)
            writer.transport.abort()

        task = asyncio.create_task(until_over(reader, writer))
        talking.add(task)
        task.add_done_callback(over)

    async with await asyncio.start_unix_server(connected, path):
        try:
            yield
        finally:
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)


# --- the private line


async def told(machine: Machine, forge: LineForge) -> str:
    """What becomes of an order to a guest that says what it likes."""
    try:
        async with channel.opened(machine) as line:
            await line.tell(channel.new_order("identity", machine))
            await line.expect(forge.random.choice(("ready", "taken")), PATIENCE_S)
    except AtollError as error:
        return type(error).__name__
    return "taken"


async def orders(machine: Machine, inputs: int, seed: int) -> Counter[str]:
    forge, left, seen = LineForge(seed), iter(range(inputs)), Counter[str]()

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if forge.one_in(3):
            await reader.readline()
        writer.write(forge.said())
        # Now and then it says no more, and stays.
        if forge.one_in(100):
            await reader.read()
        else:
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def agent() -> None:
        for _ in left:
            seen[await told(machine, forge)] += 1

    async with listening(record.channel_path(machine), guest):
        await asyncio.gather(*(agent() for _ in range(AT_ONCE)))
    return seen


async def test_nothing_that_a_guest_says_on_its_private_line_is_more_than_a_failure(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await orders(machine, WARM_UP, 0)
    process = Self(caplog)
    seen = await orders(machine, inputs_of("guest agent"), 1)
    assert seen.keys() == {"taken", "HostFailure", "TimedOut"}
    process.passed("guest agent", seen.total(), seen["taken"])


# --- commands


async def ran(machine: Machine, forge: HandsForge) -> str:
    """What becomes of a command in a guest whose agent says what it likes."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            port = await hands.connect(machine)
    except (AtollError, TimeoutError) as error:
        return type(error).__name__
    try:
        process = await port.begin(Command(("true",), input=True))
        async with asyncio.timeout(PATIENCE_S):
            await process.write(forge.noise(100))
            while isinstance(come := await process.read(), Output):
                assert len(come.data) <= 32768
        assert 0 <= come <= 255
    except (AtollError, TimeoutError) as error:
        return type(error).__name__
    finally:
        await port.close()
    return "ended"


async def runs(machine: Machine, inputs: int, seed: int) -> Counter[str]:
    forge, left, seen = HandsForge(seed), iter(range(inputs)), Counter[str]()

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.readexactly(8 + 32768 + 8 + 16)
        writer.write(forge.greeting(hello[-16:]))
        if not forge.one_in(5):
            await reader.read(64)
        for _ in range(forge.random.randrange(1, 12)):
            writer.write(forge.said())
        await writer.drain()
        if forge.one_in(4):
            await reader.read()

    async def agent() -> None:
        for _ in left:
            seen[await ran(machine, forge)] += 1

    async with listening(record.hands_path(machine), guest):
        await asyncio.gather(*(agent() for _ in range(AT_ONCE)))
    return seen


async def test_nothing_that_a_guests_agent_says_of_commands_is_more_than_a_failure(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await runs(machine, WARM_UP, 0)
    process = Self(caplog)
    seen = await runs(machine, inputs_of("commands in guests"), 1)
    assert seen.keys() <= {"ended", "HostFailure", "Conflict", "TimeoutError"}
    assert seen["ended"]
    process.passed("commands in guests", seen.total(), seen["ended"])


# --- the monitor


class Qemu:
    """One that says what it likes; enough of it is right for somebody to listen."""

    def __init__(self, seed: int) -> None:
        self.forge = MonitorForge(seed)
        self.read = 0
        """Lines of it that were read: what it answers comes behind them."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forge = self.forge
        writer.write(forge.hostile() if forge.one_in(20) else _line(GREETING))
        sent = 0
        async for command in _asked(reader):
            self.read, sent = self.read + sent, 0
            if command["execute"] != "qmp_capabilities":
                writer.write(b"".join(forge.line() for _ in range(LINES)))
                sent = LINES
            writer.write(self._answer(command))
            if forge.one_in(6):
                writer.write(forge.hostile())
                sent += 1
            await writer.drain()

    def _answer(self, command: dict[str, object]) -> bytes:
        forge = self.forge
        if forge.one_in(8):
            return forge.hostile()
        answer: object = {}
        if command["execute"] == "query-status":
            answer = {"status": "running", "running": True}
        if command["execute"] == "add-fd":
            answer = {"fdset-id": 7, "fd": 9}
        if forge.one_in(4):
            answer = forge.value(3)
        kind = "error" if forge.one_in(8) else "return"
        return _line({kind: answer, "id": command.get("id")})


async def _asked(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, object]]:
    """Commands come without anything between them, but for blanks that carry descriptors."""
    text = ""
    while data := await reader.read(1 << 16):
        text += data.decode()
        with contextlib.suppress(json.JSONDecodeError):
            while text := text.lstrip():
                command, end = json.JSONDecoder().raw_decode(text)
                text = text[end:]
                yield command


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\r\n"


async def commands(machine: Machine, inputs: int, seed: int) -> tuple[int, int]:
    """Lines that were read of it, and commands that it answered."""
    qemu, answered = Qemu(seed), 0

    async def agent() -> None:
        nonlocal answered
        while qemu.read < inputs:
            monitor = Monitor(machine.name, lambda _: None)
            with contextlib.suppress(AtollError):
                await monitor.connect(record.monitor_path(machine), 4 * PATIENCE_S)
                for _ in range(8):
                    with contextlib.suppress(AtollError, TimeoutError):
                        await monitor.execute("query-status", PATIENCE_S)
                        answered += 1
                        async with asyncio.timeout(PATIENCE_S):
                            await monitor.add_file(spare, "x")
            await monitor.close()

    spare = os.open(os.devnull, os.O_RDONLY)
    try:
        async with listening(record.monitor_path(machine), qemu.talk):
            await asyncio.gather(*(agent() for _ in range(AT_ONCE)))
    finally:
        os.close(spare)
    return qemu.read, answered


async def test_nothing_that_a_monitor_says_is_more_than_a_failure(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await commands(machine, WARM_UP, 0)
    process = Self(caplog)
    read, answered = await commands(machine, inputs_of("monitor"), 1)
    process.passed("monitor", read, answered)


async def test_a_monitor_that_breaks_off_all_the_time_keeps_nobody_busy(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(_line(GREETING))
        async for command in _asked(reader):
            writer.write(_line({"return": {"status": "running"}, "id": command.get("id")}))
            if command["execute"] == "query-status":
                await writer.drain()
                return

    with subprocess.Popen(["sleep", "60"]) as sleeper:  # noqa: ASYNC220
        try:
            pid = processes.identify(sleeper.pid)
            assert pid is not None
            watch = Watch(machine.name, record.monitor_path(machine), pid, lambda *_: None)
            async with listening(record.monitor_path(machine), talk):
                watch.begin()
                await asyncio.sleep(WATCHED_S)
                await watch.stop()
            assert 1 < connections < 20 * WATCHED_S
            assert caplog.records == []
        finally:
            sleeper.kill()


# --- the console


class Looker:
    """Someone who looks at the console of a VM, through the agent; and the VM that writes there."""

    def __init__(self, node: Node, log: Path) -> None:
        self.node, self._log = node, log
        self.forge = ConsoleForge(3)

    def look(self, inputs: int) -> None:
        """At so many pieces. All of them arrive, as they were written."""
        namespaces.inside(self.node.namespace, lambda: asyncio.run(self._look(inputs)))

    async def _look(self, inputs: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT, ssl=self.node.site.context)
        try:
            writer.write(HANDSHAKE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            await _message(reader)  # who may type
            for _ in range(0, inputs, PIECES):
                written, seen = self._write(PIECES), bytearray()
                async with asyncio.timeout(20):
                    while len(seen) < len(written):
                        seen += await _message(reader)
                assert seen == written
        finally:
            writer.transport.abort()

    def _write(self, pieces: int) -> bytes:
        written = b"".join(self.forge.piece() for _ in range(pieces))
        with self._log.open("ab") as log:
            log.write(written)
        return written


async def _message(reader: asyncio.StreamReader) -> bytes:
    """The next of a WebSocket: a head, its size, and what it says."""
    _, size = await reader.readexactly(2)
    if size > 125:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    return await reader.readexactly(size)


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looker]:
    with a_site(tmp_path_factory.mktemp("fuzz")) as site:
        node = Node(site, "n1", "10.64.0.2")
        node.start()
        node.give(LAN, "10.64.0.9")
        vm = node.create("noisy", LAN.id)
        looker = Looker(node, site.directory / "n1" / "vms" / vm.ip / "console.log")
        looker.look(WARM_UP)
        yield looker


def test_nothing_that_a_guest_writes_to_its_console_harms_the_agent(looker: Looker) -> None:
    inputs, began = inputs_of("console"), time.monotonic()
    examination = Examination(looker.node)
    looker.look(inputs)
    seconds = time.monotonic() - began
    after = examination.passed()
    attack_figures.tell_fuzz(
        "console", inputs=inputs, answered=inputs, before=examination.before, after=after, seconds=seconds
    )


@pytest.mark.parametrize("kind", ["qemu", "lxc"])
async def test_what_machines_of_each_kind_write_is_read_as_it_is(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "console.log"
    log.touch()
    forge = ConsoleForge(4)
    read_end, line = os.pipe()
    console = QemuConsole(log, line) if kind == "qemu" else LxcConsole(log, lambda: os.dup(line))
    try:
        for _ in range(200):
            written, seen = forge.piece(), b""
            with log.open("ab") as file:
                file.write(written)
            async with asyncio.timeout(5):
                while len(seen) < len(written):
                    seen += await console.read()
            assert seen == written
    finally:
        await console.close()
        os.close(read_end)
        if kind == "lxc":
            os.close(line)
