"""The publisher's process: started, found again, told what to carry. Effects: that process, its socket and its record.

    <state>/publisher.json    which process it is
    <state>/publisher.sock    where it is told; root alone can connect
    <state>/publisher.log     what it says when it fails

It runs behind walls, as a user of its own, in a cgroup of its own below that of the node's machines: it goes when all
of the node goes, and not before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

import atoll
from atoll.errors import HostFailure
from atoll.hypervisor.publishing.base import Carried
from atoll.plan.publishing import Entry
from atoll.system import aside, cgroups, clock, files, processes, steps, walls
from atoll.system.processes import Pid

log = logging.getLogger(__name__)

PACKAGES = Path(atoll.__file__).resolve().parents[1]
"""Where this package is imported from."""
ANSWER_S = 5.0
ASKED = 2
END_S = 5.0
START_EVERY_S = 1.0
MEMORY_MIB = 512
"""Far more than it takes: what it carries is in buffers of the kernel."""
LOG_BYTES = 1 << 20
_MOST_ANSWER = 64 << 20
# It has this package and the standard library to import from, until it has started.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from atoll.hypervisor.publishing.program.publisher import main; main()"
)


class PublisherProcess:
    """One for a node. `take_uid` gives the user that it runs as."""

    def __init__(self, state: Path, cgroup: str, take_uid: Callable[[], Awaitable[int]]) -> None:
        self._socket, self._record = state / "publisher.sock", state / "publisher.json"
        self._log = state / "publisher.log"
        self._group = f"{cgroup}/publisher"
        self._take_uid = take_uid
        self._python = Path(sys.executable).resolve()
        self._walls = walls.Walls(programs=(Path(sys.base_prefix), PACKAGES), own_network=False)
        self._tell: Callable[[], None] = lambda: None
        self._watched: Pid | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._started_at = -START_EVERY_S

    def on_end(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def close(self) -> None:
        """Watch it no more. It runs on."""
        self._unwatch()
        self._unwatch, self._watched = (lambda: None), None

    @property
    def running(self) -> Pid | None:
        try:
            pid = msgspec.json.decode(self._record.read_bytes(), type=Pid)
        except (OSError, msgspec.MsgspecError):
            return None
        return pid if processes.alive(pid) else None

    async def carried(self) -> Mapping[str, Carried]:
        pid = self.running
        if pid is None:
            return {}
        self._watch(pid)
        # Asked twice: it may have been us who had no time for the answer.
        for _ in range(ASKED):
            try:
                told = (await self._ask({"do": "list"}))["ports"]
                return {port["key"]: _carried(port) for port in told}
            except HostFailure as error:
                log.error("%s", error)
        log.error("the publisher is ended: it does not answer")
        await self.end()
        self._tell()
        return {}

    async def carry(self, entry: Entry, listening: socket.socket) -> None:
        if self.running is None:
            await self._start()
        await self._ask({"do": "carry", **structs.asdict(entry)}, listening)

    async def point(self, entry: Entry) -> None:
        await self._ask({"do": "point", **structs.asdict(entry)})

    async def drop(self, key: str) -> None:
        if self.running is not None:
            await self._ask({"do": "drop", "key": key})

    async def end(self) -> None:
        self.close()
        pid = self.running
        if pid is not None:
            processes.send_signal(pid, signal.SIGKILL)
            if not await processes.wait_gone(pid, END_S):
                raise HostFailure(f"ending the publisher, process {pid.pid}: it does not go")
        for path in (self._record, self._socket):
            path.unlink(missing_ok=True)
        # Also one that nobody could note any more.
        await aside.run(cgroups.kill_all, self._group)
        await aside.run(cgroups.remove, self._group)

    async def _start(self) -> None:
        has_ended = self._watched is not None
        self.close()
        now = clock.monotonic()
        # One that ends again and again is not started all the time.
        await asyncio.sleep(max(0.0, self._started_at + START_EVERY_S - now))
        self._started_at = clock.monotonic()
        pid = await aside.run(self._launch, await self._take_uid())
        self._watch(pid)
        try:
            await self._ask({"do": "list"})
        except HostFailure as error:
            raise HostFailure(f"starting the publisher: {self._last_words() or error.brief}") from error
        await aside.run(walls.clear, pid)
        log.info("the publisher runs as process %d", pid.pid)
        if has_ended:
            # Nobody has been told yet of the end of the one before.
            self._tell()

    def _launch(self, uid: int) -> Pid:
        cgroups.ensure(self._group, cgroups.Limits(memory_mib=MEMORY_MIB, pids=8))
        # One that was started by an agent that was killed before it could note that.
        cgroups.kill_all(self._group)
        self._log.unlink(missing_ok=True)
        with files.listen_unix(self._socket) as control:
            number = control.fileno()
            told = (str(PACKAGES), str(number))
            launch = processes.Launch(
                argv=(str(self._python), "-I", "-S", "-B", "-c", _PROGRAM, *told),
                uid=uid,
                cgroup=self._group,
                pass_fds=(number,),
                output=self._log,
                env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
                file_limit=LOG_BYTES,
            )
            pid = processes.identify(processes.spawn_behind(self._walls, launch))
        if pid is None:
            raise HostFailure("starting the publisher: it ended at once", hint=f"see: {self._log}")
        steps.step("publisher.started")
        files.write_durably(self._record, msgspec.json.encode(pid))
        steps.step("publisher.recorded")
        return pid

    def _last_words(self) -> str:
        try:
            return self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        except OSError:
            return ""

    def _watch(self, pid: Pid) -> None:
        if pid != self._watched:
            self.close()
            self._watched = pid
            self._unwatch = processes.on_gone(pid, self._on_gone)

    def _on_gone(self) -> None:
        log.error("the publisher has ended; see %s", self._log)
        self._watched = None
        self._tell()

    async def _ask(self, question: dict[str, Any], file: socket.socket | None = None) -> dict[str, Any]:
        doing = f"telling the publisher to {question['do']}"
        try:
            async with asyncio.timeout(ANSWER_S):
                answer: dict[str, Any] = msgspec.json.decode(await self._said(question, file))
        except TimeoutError:
            raise HostFailure(f"{doing}: no answer in {ANSWER_S:g} s") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise HostFailure(f"{doing}: {error}", hint=f"see: {self._log}") from error
        if "error" in answer:
            raise HostFailure(f"{doing}: {answer['error']}")
        return answer

    async def _said(self, question: dict[str, Any], file: socket.socket | None) -> bytes:
        loop = asyncio.get_running_loop()
        with await files.unix_socket(self._socket) as wire:
            # A line is far smaller than what a new socket takes at once.
            socket.send_fds(wire, [msgspec.json.encode(question) + b"\n"], [file.fileno()] if file else [])
            said = bytearray()
            while not said.endswith(b"\n") and len(said) < _MOST_ANSWER:
                data = await loop.sock_recv(wire, 1 << 16)
                if not data:
                    break
                said += data
            return bytes(said)


def _carried(port: dict[str, Any]) -> Carried:
    return Carried(
        entry=Entry(port["key"], port["vm"], port["ip"], port["guest_port"], port["proxy"]),
        open=port["open"],
        connections=port["connections"],
        refused=port["refused"],
        failed=port["failed"],
        received_bytes=port["bytes_in"],
        sent_bytes=port["bytes_out"],
    )
