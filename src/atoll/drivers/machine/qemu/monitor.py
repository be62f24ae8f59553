"""The monitor of one QEMU: a connection with deadlines, and the watch that follows a machine to its end.

Talks to QEMU over its Unix socket and signals its process. A lost connection is never the end of a machine:
only the guest's own word (an event, a status) or the end of the process is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from qemu.qmp import ExecuteError, QMPClient, QMPError, Runstate

from atoll.drivers.machine.base import Exit
from atoll.drivers.machine.qemu.argv import HANDS
from atoll.errors import HostFailure, TimedOut, Unreachable
from atoll.system import clock, files, processes

log = logging.getLogger(__name__)
# It reports every lost connection as an error, some with a trace; here that is an ordinary event, logged once, by us.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL + 1)

COMMAND_TIMEOUT_S = 5.0
QUIT_TIMEOUT_S = 2.0
GONE_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_CLOSE_TIMEOUT_S = 1.0
_FULL_SPEED = 1 << 36
"""Bytes a second: as fast as the disk is."""

_EXIT_BY_STATUS = {
    "shutdown": Exit.POWERED_OFF,
    "guest-panicked": Exit.CRASHED,
    "internal-error": Exit.CRASHED,
}


def exit_of_status(status: str) -> Exit | None:
    """What a status of `query-status` says about the end of the machine. Pure."""
    return _EXIT_BY_STATUS.get(status)


def exit_of_event(event: Mapping[str, Any]) -> Exit | None:
    """What an event says about the end of the machine. Pure."""
    if event["event"] == "GUEST_PANICKED":
        return Exit.CRASHED
    if event["event"] == "SHUTDOWN":
        causes = {"guest-shutdown": Exit.POWERED_OFF, "guest-panic": Exit.CRASHED}
        return causes.get(_word(event.get("data"), "reason"))
    return None


def is_out_of_room(status: str) -> bool:
    """Whether a status of `query-status` says that the machine is paused for want of room. Pure.

    Disks pause their machine for that alone; other errors are told to the guest.
    """
    return status == "io-error"


def is_held(status: str) -> bool:
    """Whether a status of `query-status` says that the machine waits for a word of ours. Pure."""
    return status in ("paused", "prelaunch")


def hold_of_event(event: Mapping[str, Any]) -> bool | None:
    """Whether an event says that the machine was held, or goes on; None: neither. Pure."""
    return {"STOP": True, "RESUME": False}.get(event["event"])


def stall_of_event(event: Mapping[str, Any]) -> bool | None:
    """Whether an event says that the machine was paused for want of room, or goes on; None: neither. Pure."""
    if event["event"] == "BLOCK_IO_ERROR":
        return True if _word(event.get("data"), "action") == "stop" else None
    return False if event["event"] == "RESUME" else None


def agent_has_ended(event: Mapping[str, Any]) -> bool:
    """Whether an event says that the agent in the guest has ended, or begins anew with its guest. Pure."""
    if event["event"] == "RESET":
        return True
    said = event.get("data")
    is_ours = event["event"] == "VSERPORT_CHANGE" and _word(said, "id") == HANDS
    return is_ours and isinstance(said, Mapping) and said.get("open") is False


def end_of_migration(event: Mapping[str, Any]) -> bool | None:
    """Whether an event tells of a migration that succeeded; None when it tells of no end. Pure."""
    status = _word(event.get("data"), "status") if event["event"] == "MIGRATION" else ""
    return {"completed": True, "failed": False, "cancelled": False}.get(status)


def _word(said: object, name: str) -> str:
    """What stands under a name; empty where there is no word. A QEMU that its guest took over says what it likes."""
    word = said.get(name) if isinstance(said, Mapping) else None
    return word if isinstance(word, str) else ""


class Monitor:
    """One connection to a monitor. Not to be used again after `close`."""

    def __init__(
        self,
        name: str,
        on_end: Callable[[Exit], None],
        on_stall: Callable[[bool], None] = lambda _: None,
        on_agent_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.held = False
        """Whether the machine stands still, for whatever reason."""
        self._on_agent_end = on_agent_end
        self._on_end = on_end
        self._on_stall = on_stall
        self._client = QMPClient(name)
        self._socket: socket.socket | None = None
        self._migrated: asyncio.Future[bool] | None = None
        self._passing = asyncio.Lock()
        # A listener keeps for ever what it accepts, and guests can cause events: so this one accepts none.
        self._client.events.event_filter = self._heard

    async def connect(self, path: Path, timeout_s: float) -> None:
        """Connect and learn the status. Unreachable when nobody listens, TimedOut when nobody answers."""
        try:
            async with asyncio.timeout(timeout_s):
                self._socket = await files.unix_socket(path)
                await self._client.connect(self._socket)
        except TimeoutError:
            raise self._late("connecting to its monitor", timeout_s) from None
        # Whatever ended it comes through here, as the client met it: of a hostile QEMU that can be anything.
        except Exception as error:
            raise Unreachable(
                f"machine {self.name}: connecting to its monitor: {error}",
                hint="see whether its QEMU still runs",
            ) from error
        status = _word(await self.execute("query-status", timeout_s), "status")
        if (reason := exit_of_status(status)) is not None:
            self._on_end(reason)
        self._on_stall(is_out_of_room(status))
        self.held = is_held(status)

    async def execute(
        self, command: str, timeout_s: float = COMMAND_TIMEOUT_S, arguments: dict[str, object] | None = None
    ) -> Any:
        """Run a command. TimedOut when QEMU does not answer, HostFailure when it refuses or goes away."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._client.execute(command, arguments)
        except TimeoutError:
            raise self._late(command, timeout_s) from None
        except ExecuteError as error:
            raise HostFailure(f"machine {self.name}: QEMU refused {command}: {error}") from error
        except QMPError as error:
            raise HostFailure(
                f"machine {self.name}: {command}: the connection to its monitor is lost", hint="try again"
            ) from error

    async def pass_file(self, name: str, descriptor: int) -> None:
        """Give QEMU an open file, for a command that refers to it by this name."""
        assert self._socket is not None
        # Blanks between commands mean nothing to QEMU; the descriptor travels with one, and waits alone.
        async with self._passing:
            socket.send_fds(self._socket, [b" "], [descriptor])
            await self.execute("getfd", arguments={"fdname": name})

    async def add_file(self, descriptor: int, opaque: str) -> int:
        """Give QEMU an open file as a set of its own; the number of the set."""
        assert self._socket is not None
        async with self._passing:
            socket.send_fds(self._socket, [b" "], [descriptor])
            added = await self.execute("add-fd", arguments={"opaque": opaque})
        try:
            return int(added["fdset-id"])
        except (TypeError, KeyError, ValueError):
            raise HostFailure(f"machine {self.name}: add-fd: QEMU answered with no number of a set") from None

    async def migrate(
        self, command: Literal["migrate", "migrate-incoming"], uri: str, timeout_s: float
    ) -> None:
        """Let the machine's state out or in, all but what memory it shares; returns when it is done."""
        wanted = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        await self.execute("migrate-set-capabilities", arguments={"capabilities": wanted})
        done = self._migrated = asyncio.get_running_loop().create_future()
        lost = asyncio.ensure_future(self.until_lost())
        try:
            await self.execute(command, timeout_s, {"uri": uri})
            await asyncio.wait({done, lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done.done() and not lost.done():
                raise self._late(command, timeout_s)
            if not done.done() or not done.result():
                raise HostFailure(f"machine {self.name}: {command}: QEMU failed")
        finally:
            self._migrated = None
            lost.cancel()

    async def until_lost(self) -> None:
        while self._client.runstate is Runstate.RUNNING:
            await self._client.runstate_changed()

    async def close(self) -> None:
        """Let go of the connection, in whatever state it is. A cancellation waits until that is done."""
        closing = asyncio.create_task(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})
            raise

    async def _close(self) -> None:
        # Raises what ended the connection, if anything did; that has been dealt with.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._client.disconnect()

    def _heard(self, event: Mapping[str, Any]) -> bool:
        if (reason := exit_of_event(event)) is not None:
            self._on_end(reason)
        if (stalled := stall_of_event(event)) is not None:
            self._on_stall(stalled)
        if agent_has_ended(event):
            self._on_agent_end()
        if (held := hold_of_event(event)) is not None:
            self.held = held
        done = end_of_migration(event)
        if done is not None and self._migrated is not None and not self._migrated.done():
            self._migrated.set_result(done)
        return False

    def _late(self, doing: str, timeout_s: float) -> TimedOut:
        return TimedOut(
            f"machine {self.name}: {doing}: no answer in {timeout_s:g} s",
            hint="QEMU hangs or the host is overloaded; force it off if this lasts",
        )


class Watch:
    """Follows one QEMU until it ends. `finished` is called once, when its process is gone."""

    def __init__(
        self,
        name: str,
        path: Path,
        process: processes.Pid,
        finished: Callable[[Watch, Exit], None],
        on_stall: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.stalled = False
        """Whether it is paused for want of room."""
        self._on_stall = on_stall
        self.on_agent_end: Callable[[], None] = lambda: None
        """Called when the agent in the guest has ended, as far as anybody can tell."""
        self.process = process
        self._path = path
        self._finished = finished
        self._over = asyncio.Event()
        self._reason: Exit | None = None
        self._monitor: Monitor | None = None
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def ending(self) -> bool:
        """Whether the guest is known to have ended, though its process may still be there."""
        return self._over.is_set()

    @property
    def frozen(self) -> bool:
        """Whether it is held still by us, as far as its monitor told."""
        return self._monitor is not None and self._monitor.held and not self.stalled and not self.ending

    async def connect(self, timeout_s: float) -> None:
        """Make the first connection; the machine may turn out to have ended. Unreachable if its QEMU dies."""
        connecting = asyncio.create_task(self._connect(timeout_s))

        def give_up() -> None:
            connecting.cancel()

        cancel = processes.on_gone(self.process, give_up)
        try:
            await asyncio.wait({connecting})
        finally:
            cancel()
            connecting.cancel()
            await asyncio.wait({connecting})
        if connecting.cancelled():
            raise Unreachable(f"machine {self.name}: its QEMU ended", hint="start it again")
        connecting.result()

    def begin(self) -> None:
        """Watch from now on, connected or not."""
        self._task = asyncio.create_task(self._run(), name=f"watch {self.name}")

    async def execute(
        self, command: str, timeout_s: float = COMMAND_TIMEOUT_S, arguments: dict[str, object] | None = None
    ) -> Any:
        """Run a monitor command, after waiting for a connection if there is none just now."""
        monitor = await self.reachable(command, timeout_s)
        return await monitor.execute(command, timeout_s, arguments)

    async def add_file(self, descriptor: int, opaque: str) -> int:
        """Give it an open file; the number of the set that it is in there."""
        monitor = await self.reachable("add-fd")
        return await monitor.add_file(descriptor, opaque)

    async def add_client(self, descriptor: int) -> None:
        """Have its VNC server talk to whoever is at the other end of this socket."""
        monitor = await self.reachable("add_client")
        name = f"vnc-{secrets.token_hex(4)}"
        await monitor.pass_file(name, descriptor)
        await monitor.execute("add_client", arguments={"protocol": "vnc", "fdname": name, "skipauth": True})

    async def migrate(
        self, command: Literal["migrate", "migrate-incoming"], uri: str, timeout_s: float
    ) -> None:
        """See `Monitor.migrate`. Only on a connection that was just made."""
        assert self._monitor is not None
        await self._monitor.migrate(command, uri, timeout_s)

    async def save(self, descriptor: int, timeout_s: float) -> None:
        """Write all that a machine is into a file. It stands still afterwards."""
        monitor = await self.reachable("migrate")
        await monitor.execute("migrate-set-parameters", arguments={"max-bandwidth": _FULL_SPEED})
        await monitor.pass_file("saved", descriptor)
        try:
            await monitor.migrate("migrate", "fd:saved", timeout_s)
        except BaseException:
            with contextlib.suppress(TimedOut, HostFailure):
                await monitor.execute("migrate_cancel")
            raise

    def note_held(self) -> None:
        """It has come with its memory, and waits."""
        if self._monitor is not None:
            self._monitor.held = True

    async def done(self) -> None:
        """Wait until the end has been reported."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def conclude(self) -> Exit:
        """Instead of `begin`, for a machine that turned out to have ended: let its QEMU go, and say why."""
        await self._leave()
        await self._disconnect()
        return self._reason or Exit.CRASHED

    async def stop(self) -> None:
        """Watch no longer; the machine runs on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._disconnect()

    async def _run(self) -> None:
        cancel = processes.on_gone(self.process, self._over.set)
        connecting = asyncio.create_task(self._stay_connected(), name=f"monitor {self.name}")
        try:
            await self._over.wait()
            await self._leave()
        finally:
            cancel()
            connecting.cancel()
            await asyncio.wait({connecting})
            await self._disconnect()
        self._finished(self, self._reason or Exit.CRASHED)

    async def _stay_connected(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            if self._monitor is not None:
                connected_at = clock.monotonic()
                await self._monitor.until_lost()
                await self._disconnect()
                if clock.monotonic() - connected_at > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                else:
                    # One that breaks off again and again is not to keep us busy.
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self._connect(COMMAND_TIMEOUT_S)
            except (Unreachable, TimedOut, HostFailure) as error:
                if processes.alive(self.process) and not self.ending:
                    log.warning("%s; trying again in %.2f s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connect(self, timeout_s: float) -> None:
        monitor = Monitor(self.name, self._heard, self._heard_stall, lambda: self.on_agent_end())
        try:
            await monitor.connect(self._path, timeout_s)
        except BaseException:
            await monitor.close()
            raise
        self._monitor = monitor
        self._connected.set()

    async def reachable(self, doing: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Monitor:
        """Its monitor, after waiting for a connection if there is none just now."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise TimedOut(
                f"machine {self.name}: {doing}: its monitor cannot be reached",
                hint="QEMU hangs or the host is overloaded; force it off if this lasts",
            ) from None
        assert self._monitor is not None
        return self._monitor

    async def _disconnect(self) -> None:
        self._connected.clear()
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            await monitor.close()

    def _heard(self, reason: Exit) -> None:
        self._reason = self._reason or reason
        self._over.set()

    def _heard_stall(self, stalled: bool) -> None:
        if stalled != self.stalled:
            self.stalled = stalled
            self._on_stall(stalled)

    async def _leave(self) -> None:
        """The guest has ended: so shall its QEMU, by itself or by force."""
        if not processes.alive(self.process):
            return
        with contextlib.suppress(TimedOut, HostFailure):
            await self.execute("quit", QUIT_TIMEOUT_S)
        while not await processes.wait_gone(self.process, QUIT_TIMEOUT_S):
            log.warning("machine %s: its QEMU does not quit; killing it", self.name)
            processes.send_signal(self.process, signal.SIGKILL)


async def end(process: processes.Pid, name: str) -> None:
    """End a QEMU at once, whatever it does. Gone is fine."""
    processes.send_signal(process, signal.SIGKILL)
    if not await processes.wait_gone(process, GONE_TIMEOUT_S):
        raise HostFailure(
            f"machine {name}: its QEMU (process {process.pid}) does not end",
            hint=f"see what it waits for: cat /proc/{process.pid}/stack",
        )
