"""Which commands can be run in which VM, how many at once, and their streams over a WebSocket.

Effects: through drivers; bytes both ways. What is in memory of a command is a few frames: whoever reads slowly makes
the guest wait, and the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Any

from atoll.api.codec import decode_body, problem_of
from atoll.api.hands import FIRST_WINDOW, MOST_DATA, STDIN, WINDOW, Control, Ended, Told, frame, unframe
from atoll.api.route import ByteSocket
from atoll.drivers.machine.base import HANG_UP_S, CanExec, Process
from atoll.errors import AtollError, Conflict, Malformed, TimedOut
from atoll.hypervisor.hands.places import Places
from atoll.hypervisor.launch.machines import Machines
from atoll.model.command import TIMED_OUT, Command
from atoll.model.lifecycle import how_to_run
from atoll.model.vm import VM, VmState

log = logging.getLogger(__name__)

PER_VM = 16
PER_USER = 32
"""Commands that run at once."""
FIRST_FRAME_S = 30.0


class Hands:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.places = Places("vm exec", "commands that run", PER_VM, PER_USER)
        self._endings: set[asyncio.Task[None]] = set()

    def check(self, vm: VM) -> None:
        """Refuse what cannot be, before anything is waited for."""
        driver = self._machines.driver(vm.driver)
        if not isinstance(driver, CanExec):
            raise Conflict(f"vm exec: VM {vm.name}: machines of kind {vm.driver} run no commands")
        if driver.needs_agent and not self._machines.image(vm).agent:
            raise Conflict(
                f"vm exec: image {vm.image} has no guest agent",
                hint=f"use the console (atoll vm console {vm.name}), or another kind of machine: lxc, docker",
                details={"image": vm.image},
            )
        if vm.state is not VmState.RUNNING:
            raise Conflict(f"vm exec: VM {vm.name} is {vm.state}", hint=how_to_run(vm))

    async def start(self, vm: VM, command: Command) -> Process:
        driver = self._machines.driver(vm.driver)
        assert isinstance(driver, CanExec)
        return await driver.exec(self._machines.machine(vm), command)

    def let_go(self, process: Process) -> None:
        """End what still runs of it, beside whoever asks for that."""
        task = asyncio.ensure_future(process.close())
        self._endings.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("ending a command: %s", task.exception())

    async def close(self) -> None:
        """All commands that were let go of have ended."""
        if self._endings:
            await asyncio.wait(self._endings)


async def first_frame(socket: ByteSocket) -> Command | None:
    """What the caller wants to run; None when it has gone. Malformed or Invalid when that is nothing of the kind."""
    try:
        async with asyncio.timeout(FIRST_FRAME_S):
            message = await socket.message()
    except TimeoutError:
        raise TimedOut(f"vm exec: no command came within {FIRST_FRAME_S:g} s") from None
    if message == b"":
        return None
    if isinstance(message, bytes):
        raise Malformed("vm exec: the first frame must be text: the command")
    command: Command = decode_body(Command, message.encode("utf-8", "surrogatepass"))
    return command


async def converse(process: Process, command: Command, socket: ByteSocket) -> None:
    """The streams of a command both ways, until it has ended or the caller has gone."""
    unfed = _Input()
    out = asyncio.ensure_future(_out(process, socket))
    heard = asyncio.ensure_future(_hear(process, command, socket, unfed))
    feeding = asyncio.ensure_future(_feed(process, socket, unfed))
    out_of_time = asyncio.Event()
    timer = asyncio.ensure_future(_expire(process, command.timeout_s, out_of_time))
    tasks: tuple[asyncio.Future[Any], ...] = (out, heard, feeding, timer)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for done in (each for each in tasks if each.done()):
            done.result()
        if out_of_time.is_set():
            await socket.tell(Told(ended=Ended(TIMED_OUT, timed_out=True)))
        elif out.done():
            await socket.tell(Told(ended=Ended(out.result())))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def refuse(socket: ByteSocket, error: AtollError) -> None:
    """The last word of a command that could not be run, or not to its end."""
    with contextlib.suppress(ConnectionError):
        await socket.tell(Told(ended=Ended(error=problem_of(error))))


async def _out(process: Process, socket: ByteSocket) -> int:
    while True:
        come = await process.read()
        if isinstance(come, int):
            return come
        for start in range(0, len(come.data), MOST_DATA):
            await socket.send(frame(come.stream, come.data[start : start + MOST_DATA]))


class _Input:
    """What the caller sent for the command, in order; None is its end. Never more than the window."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.size = 0


async def _hear(process: Process, command: Command, socket: ByteSocket, unfed: _Input) -> None:
    """What the caller says, until it has gone. Waits for nothing else: that one goes is seen at once."""
    while (message := await socket.message()) != b"":
        if isinstance(message, bytes):
            _, data = unframe(message, (STDIN,))
            unfed.size += len(data)
            if unfed.size > WINDOW:
                raise Malformed(f"vm exec: more than {WINDOW} bytes of input that were not taken yet")
            if command.input and data:
                unfed.queue.put_nowait(data)
        else:
            await _obey(process, control_of(message), unfed)


async def _feed(process: Process, socket: ByteSocket, unfed: _Input) -> None:
    """Input to the command, as fast as it takes it."""
    untold = WINDOW - FIRST_WINDOW
    while (data := await unfed.queue.get()) is not None:
        await process.write(data)
        unfed.size -= len(data)
        untold += len(data)
        # Not for every piece, but always before the caller would wait for it.
        if untold >= FIRST_WINDOW // 4:
            await socket.tell(Told(taken=untold))
            untold = 0
    await process.end_input()
    await asyncio.Event().wait()


def control_of(message: str) -> Control:
    control: Control = decode_body(Control, message.encode("utf-8", "surrogatepass"))
    return control


async def _obey(process: Process, control: Control, unfed: _Input) -> None:
    if control.resize is not None:
        await process.resize(control.resize)
    if control.signal is not None:
        await process.send_signal(control.signal)
    if control.end_of_input:
        unfed.queue.put_nowait(None)


async def _expire(process: Process, timeout_s: float | None, out_of_time: asyncio.Event) -> None:
    """Have a command end when its time is over, with force if need be; its last words still come until then."""
    if timeout_s is None:
        await asyncio.Event().wait()
        return
    await asyncio.sleep(timeout_s)
    out_of_time.set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        await process.send_signal(number)
        await asyncio.sleep(HANG_UP_S)
