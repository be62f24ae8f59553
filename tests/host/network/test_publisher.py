"""The publisher's process by itself: one that hangs, one without descriptors, and one that is full.

Clients and what stands for guests are on this machine's loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.hypervisor.publishing import process
from atoll.hypervisor.publishing.process import PACKAGES, PublisherProcess
from atoll.plan.publishing import Entry
from atoll.system import cgroups, files, processes

HERE = "127.0.0.1"
GROUP = f"atoll-test-publisher-{os.getpid()}"
UID = 61_501
PATIENCE_S = 10.0


@pytest.fixture
async def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PublisherProcess]:
    async def uid() -> int:
        return UID

    monkeypatch.setattr(process, "ANSWER_S", 0.5)
    made = PublisherProcess(tmp_path, GROUP, uid)
    yield made
    await made.end()
    cgroups.remove(GROUP)


class Guest:
    """Takes connections, and says nothing."""

    def __init__(self) -> None:
        self.listening = socket.create_server((HERE, 0), backlog=4096)
        self.port: int = self.listening.getsockname()[1]


@pytest.fixture
def guest() -> Iterator[Guest]:
    made = Guest()
    with made.listening:
        yield made


def entry(listening: socket.socket, guest: Guest, vm: str = "v1") -> Entry:
    return Entry(f"{HERE}:{listening.getsockname()[1]}", vm, HERE, guest.port)


async def test_one_that_hangs_is_ended_and_the_next_one_is_another(
    publisher: PublisherProcess, guest: Guest
) -> None:
    with socket.create_server((HERE, 0)) as listening:
        await publisher.carry(entry(listening, guest), listening)
    hanging, told = publisher.running, list[str]()
    publisher.on_end(lambda: told.append("ended"))
    assert hanging is not None
    processes.send_signal(hanging, signal.SIGSTOP)
    with pytest.raises(HostFailure, match=r"no answer in 0\.5 s"):
        await publisher.drop("any")
    assert await publisher.carried() == {}
    assert not processes.alive(hanging)
    assert told == ["ended"]


def kill_unseen(publisher: PublisherProcess) -> None:
    """Its death, without a pause in which anybody could be told of it."""
    assert publisher.running is not None
    os.kill(publisher.running.pid, signal.SIGKILL)
    while publisher.running is not None:
        time.sleep(0.001)


async def test_one_that_died_unseen_is_told_of_when_the_next_is_started(
    publisher: PublisherProcess, guest: Guest
) -> None:
    told: list[str] = []
    publisher.on_end(lambda: told.append("ended"))
    for _ in range(2):
        with socket.create_server((HERE, 0)) as listening:
            await publisher.carry(entry(listening, guest), listening)
        kill_unseen(publisher)
    assert told == ["ended"]


async def test_whoever_started_it_is_told_when_it_ends(publisher: PublisherProcess, guest: Guest) -> None:
    ended = asyncio.Event()
    publisher.on_end(ended.set)
    with socket.create_server((HERE, 0)) as listening:
        await publisher.carry(entry(listening, guest), listening)
    assert publisher.running is not None
    processes.send_signal(publisher.running, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()


class Small:
    """A publisher with few descriptors, told over its socket as an agent would."""

    def __init__(self, directory: Path, descriptors: int) -> None:
        self.path = directory / "control"
        control = files.listen_unix(self.path)
        code = "from atoll.hypervisor.publishing.program.publisher import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(control.fileno())],
            cwd=PACKAGES,
            pass_fds=(control.fileno(),),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        )
        control.close()

    def carry(self, listening: socket.socket, guest: Guest) -> bytes:
        one = entry(listening, guest)
        line = f'{{"do":"carry","key":"{one.key}","vm":"v1","proxy":false,"ip":"{HERE}","guest_port":{guest.port}}}\n'
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(PATIENCE_S)
            wire.connect(str(self.path))
            socket.send_fds(wire, [line.encode()], [listening.fileno()])
            return wire.recv(4096)

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    made = Small(tmp_path, 300)
    yield made
    made.process.kill()
    made.process.wait()


def connected(stack: contextlib.ExitStack, listening: socket.socket) -> socket.socket:
    wire = stack.enter_context(socket.create_connection(listening.getsockname()[:2], timeout=PATIENCE_S))
    wire.sendall(b"x")
    return wire


def test_without_descriptors_nobody_is_served_worse_and_no_time_is_wasted(small: Small, guest: Guest) -> None:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server((HERE, 0))) for _ in range(300)]
        assert small.carry(ports[0], guest) == b"{}\n"
        first = connected(stack, ports[0])
        other_end = stack.enter_context(guest.listening.accept()[0])
        assert other_end.recv(1) == b"x"
        for port in ports[1:]:
            if small.carry(port, guest) != b"{}\n":
                break
        else:
            pytest.fail("it never ran out of descriptors")
        # The last one is taken by somebody who says nothing.
        idle = stack.enter_context(socket.socket(socket.AF_UNIX))
        idle.connect(str(small.path))
        waiting = connected(stack, ports[0])
        used = small.cpu_s
        waiting.settimeout(0.5)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        assert small.cpu_s - used < 0.1
        first.sendall(b"still")
        assert other_end.recv(5) == b"still"
        idle.close()
        waiting.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)
        first.sendall(b"still")
        assert other_end.recv(5) == b"still"


def test_one_that_is_full_lets_in_whoever_has_few_instead_of_whoever_has_many(
    small: Small, guest: Guest
) -> None:
    """300 descriptors are good for 14 connections."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(socket.create_server((HERE, 0), backlog=100))
        assert small.carry(port, guest) == b"{}\n"
        many = [connected(stack, port) for _ in range(14)]
        ends = [stack.enter_context(guest.listening.accept()[0]) for _ in many]
        assert [end.recv(1) for end in ends] == [b"x"] * 14
        with pytest.raises(ConnectionResetError):
            connected(stack, port).recv(1)

        few = stack.enter_context(socket.socket())
        few.bind(("127.0.0.9", 0))
        few.settimeout(PATIENCE_S)
        few.connect(port.getsockname())
        few.sendall(b"y")
        end = stack.enter_context(guest.listening.accept()[0])
        assert end.recv(1) == b"y"
        with pytest.raises(ConnectionResetError):
            many[0].recv(1)
        many[1].sendall(b"z")
        assert ends[1].recv(1) == b"z"
