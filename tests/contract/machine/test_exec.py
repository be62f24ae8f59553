"""Commands in guests, on every kind of machine."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from atoll.drivers.machine.base import Machine, Output, Process, capabilities_of
from atoll.errors import Conflict
from atoll.model.command import Command, Size

PATIENCE_S = 30
PROMPT_S = 8
"""Below the time that an engine waits for what will not end by itself."""

BUSYBOX = "/bin/busybox"
REAL = ("agent", "lxc", "docker", "podman")
on_every_kind = pytest.mark.parametrize("lab", ["sim", *REAL], indirect=True)


def sh(script: str, **more: Any) -> Command:
    return Command(("/bin/sh", "-c", script), **more)


def busybox(*words: str, **more: Any) -> Command:
    return Command((BUSYBOX, *words), **more)


async def rest_of(process: Process) -> tuple[int, bytes, bytes]:
    """The status and both streams of a command, to its end."""
    streams = {1: b"", 2: b""}
    async with asyncio.timeout(PATIENCE_S):
        while isinstance(come := await process.read(), Output):
            assert come.data
            streams[come.stream] += come.data
    await process.close()
    return come, streams[1], streams[2]


async def read_until(process: Process, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while text not in seen:
            come = await process.read()
            assert isinstance(come, Output), (come, seen)
            seen += come.data
    return seen


class Guest:
    """A machine that runs, and what is run in it."""

    def __init__(self, lab: Any, driver: Any, machine: Machine) -> None:
        self.lab, self.driver, self.machine = lab, driver, machine

    async def start(self, command: Command) -> Process:
        process: Process = await self.driver.exec(self.machine, command)
        return process

    async def run(self, command: Command, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        process = await self.start(command)
        feeding = asyncio.ensure_future(self._feed(process, stdin) if command.input else asyncio.sleep(0))
        try:
            return await rest_of(process)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self, process: Process, stdin: bytes) -> None:
        for start in range(0, len(stdin), 32768):
            await process.write(stdin[start : start + 32768])
        await process.end_input()


@pytest.fixture
async def guest(lab: Any, exits: Any) -> Guest:
    driver = lab.driver(exits)
    assert "exec" in capabilities_of(driver)
    machine = lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    return Guest(lab, driver, machine)


@on_every_kind
async def test_the_status_and_both_streams_of_a_command_come_back(guest: Guest) -> None:
    assert await guest.run(sh("echo out; echo oops >&2; exit 3")) == (3, b"out\n", b"oops\n")
    assert await guest.run(busybox("true")) == (0, b"", b"")
    assert await guest.run(Command(("busybox" if guest.driver.name != "sim" else BUSYBOX, "true"))) == (
        0,
        b"",
        b"",
    )
    assert await guest.run(busybox("false")) == (1, b"", b"")


@on_every_kind
async def test_a_signal_counts_as_128_and_its_number(guest: Guest) -> None:
    assert (await guest.run(sh("kill -9 $$")))[0] == 137


@on_every_kind
async def test_a_program_that_is_not_there_ends_with_127(guest: Guest) -> None:
    assert (await guest.run(Command(("/bin/none",))))[0] == 127
    assert (await guest.run(Command(("none",))))[0] == 127


@on_every_kind
async def test_input_comes_back_whole_with_its_end(guest: Guest) -> None:
    content = bytes(range(256)) * 4096

    assert await guest.run(busybox("cat", input=True), content) == (0, content, b"")
    assert await guest.run(busybox("cat")) == (0, b"", b"")


@on_every_kind
async def test_environment_and_directory_are_those_that_were_asked_for(guest: Guest) -> None:
    _, out, _ = await guest.run(busybox("env", env={"GREETING": "good morning"}))
    assert b"GREETING=good morning\n" in out
    assert (await guest.run(busybox("pwd", cwd="/tmp")))[1] == b"/tmp\n"


@on_every_kind
async def test_a_terminal_is_one_stream_of_the_size_that_it_was_given(guest: Guest) -> None:
    script = "stty size; echo oops >&2"
    if guest.driver.name != "sim":
        # An engine gives it its size when it has begun.
        script = (
            "until busybox stty size 2>/dev/null | busybox grep .; do busybox sleep 0.05; done; echo oops >&2"
        )

    status, out, err = await guest.run(sh(script, terminal=Size(33, 99)))

    assert (status, out, err) == (0, b"33 99\r\noops\r\n", b"")


@on_every_kind
async def test_a_signal_reaches_a_command_that_runs(guest: Guest) -> None:
    process = await guest.start(sh("echo begun; sleep 60") if guest.driver.name == "sim" else _sleeper())
    await read_until(process, b"begun\n")

    await process.send_signal(signal.SIGTERM)

    assert (await rest_of(process))[0] == 143


def _sleeper() -> Command:
    return sh("echo begun; exec busybox sleep 60")


@on_every_kind
async def test_several_commands_run_at_once(guest: Guest) -> None:
    contents = [bytes([number]) * 200_000 for number in range(4)]

    done = await asyncio.gather(*(guest.run(busybox("cat", input=True), content) for content in contents))

    assert [out for _, out, _ in done] == contents


@on_every_kind
async def test_output_without_end_waits_for_its_reader_and_ends_with_it(guest: Guest) -> None:
    process = await guest.start(busybox("yes"))
    await read_until(process, b"y\ny\n")
    await asyncio.sleep(0.3)
    await read_until(process, b"y\ny\n")

    await process.close()

    assert (await guest.run(busybox("true")))[0] == 0


@on_every_kind
async def test_the_next_agent_runs_commands_too_and_at_once(guest: Guest, new_exits: Any) -> None:
    await guest.run(busybox("true"))
    await guest.driver.close()
    guest.driver = guest.lab.driver(new_exits)

    async with asyncio.timeout(8):
        assert await guest.run(busybox("true")) == (0, b"", b"")


@on_every_kind
async def test_a_machine_that_does_not_run_runs_no_command(guest: Guest) -> None:
    await guest.driver.kill(guest.machine)

    with pytest.raises(Conflict, match="not running"):
        await guest.start(busybox("true"))


@on_every_kind
async def test_a_machine_that_ends_ends_its_commands_and_says_so(guest: Guest) -> None:
    process = await guest.start(sh("echo begun; sleep 60") if guest.driver.name == "sim" else _sleeper())
    await read_until(process, b"begun\n")

    async with asyncio.timeout(PROMPT_S):
        await guest.driver.kill(guest.machine)

    with pytest.raises(Conflict, match="stopped"):
        await rest_of(process)
    await process.close()


@pytest.mark.parametrize("lab", REAL, indirect=True)
class TestOfRealGuests:
    """What a simulated guest has no notion of."""

    async def test_a_program_that_cannot_be_run_ends_with_126(self, guest: Guest) -> None:
        status, _, err = await guest.run(Command(("/etc",)))
        assert status == 126, err

    async def test_a_command_that_is_let_go_of_ends_also_one_that_ignores_it(self, guest: Guest) -> None:
        process = await guest.start(sh("trap '' HUP; echo begun; while :; do busybox sleep 1; done"))
        await read_until(process, b"begun\n")

        await process.close()

        async with asyncio.timeout(PATIENCE_S):
            while b"while :" in (await guest.run(busybox("ps", "-o", "args")))[1]:
                await asyncio.sleep(0.1)

    async def test_a_terminal_is_resized_and_can_be_the_controlling_one(self, guest: Guest) -> None:
        # An engine may give it its first size only a moment after it began.
        script = """
            until [ "$(busybox stty size)" = "10 20" ]; do busybox sleep 0.1; done
            trap 'told=yes' WINCH
            echo begun >/dev/tty
            until [ "$told $(busybox stty size)" = "yes 44 55" ]; do busybox sleep 0.1; done
            busybox stty size
        """
        process = await guest.start(sh(script, terminal=Size(10, 20), input=True))
        await read_until(process, b"begun")

        await process.resize(Size(44, 55))

        status, out, _ = await rest_of(process)
        assert (status, out.strip()) == (0, b"44 55")

    async def test_ctrl_c_and_ctrl_d_mean_on_a_terminal_what_they_do(self, guest: Guest) -> None:
        process = await guest.start(sh("echo begun; exec busybox cat", terminal=Size(), input=True))
        await read_until(process, b"begun\r\n")
        await process.write(b"hello\n")
        await read_until(process, b"hello\r\nhello\r\n")
        await process.end_input()
        assert (await rest_of(process))[0] == 0

        process = await guest.start(sh("echo begun; exec busybox sleep 60", terminal=Size(), input=True))
        await read_until(process, b"begun\r\n")
        await process.write(b"\x03")
        assert (await rest_of(process))[0] == 130

    async def test_a_user_is_looked_up_in_the_guest_and_by_number(self, guest: Guest) -> None:
        await guest.run(sh("echo 'joe:x:1234:1234::/tmp:/bin/sh' >>/etc/passwd"))
        show = "busybox id -u; busybox id -g; echo $HOME"

        assert (await guest.run(sh(show, user="joe")))[1] == b"1234\n1234\n/tmp\n"
        assert (await guest.run(sh("busybox id -u", user="77")))[1] == b"77\n"

    async def test_nothing_but_its_streams_is_open_in_a_command(self, guest: Guest) -> None:
        _, out, _ = await guest.run(sh("for each in /proc/self/fd/*; do echo ${each##*/}; done"))
        assert set(out.split()) <= {b"0", b"1", b"2", b"3"}, out  # 3: the directory itself
