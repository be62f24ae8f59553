"""The audit log: one line for every call that changes something or was denied, before its caller gets the answer.

Repeats of what changes nothing are counted in one line: see folding.py. Effects: appends to a file that only root
reads, through the writer; turned over when it is large or a week old. Old parts go by their age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from atoll.api.observing import AuditQuery
from atoll.api.route import Bound, Call, Content, Done, Route, Socket, Stream, Upload
from atoll.errors import AtollError, HostFailure
from atoll.model.audit import NODE_ITSELF, AuditEntry
from atoll.model.identity import Identity
from atoll.model.vm import VM
from atoll.serving.folding import Deed, Folding
from atoll.serving.line_reading import last_of
from atoll.system import clock
from atoll.system.line_log import Ages, LineLog
from atoll.system.writer import Writer

log = logging.getLogger(__name__)

LIMIT_BYTES = 16 << 20
KEPT = 31
"""So many parts beside the one that is written to, whatever their age: 512 MiB in all."""
TURN_OVER_S = 7 * 86_400.0
KEEP_DAYS = 90
LOOK_EVERY_S = 5.0
MOST_DETAIL = 1024
"""Characters of what was asked for that are kept in an entry."""
NOTED_BY_HANDLERS = frozenset({"vm.exec", "vm.ssh"})
"""Routes of which what is asked for, or given, is known after their handler has begun: it notes that, before its
caller has it."""

FindVm = Callable[[str], VM | None]

_decode = msgspec.json.Decoder(AuditEntry).decode


class AuditLog:
    def __init__(
        self, path: Path, writer: Writer, limit_bytes: int = LIMIT_BYTES, keep_days: int = KEEP_DAYS
    ) -> None:
        ages = Ages(TURN_OVER_S, keep_days * 86_400.0, _moment_of)
        self._lines = LineLog(path, limit_bytes, KEPT, ages)
        self._writer = writer
        self._folding = Folding()

    async def note(self, deed: Deed) -> None:
        """On disk when this returns, unless it is one of many that are counted."""
        if self._folding.is_line(deed, clock.monotonic()):
            await self._write(deed.entry)

    async def keep(self) -> None:
        """For ever: write what was counted."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for entry in self._folding.due(clock.monotonic()):
                await self._write(entry)

    async def settle(self) -> None:
        """Write all that was counted."""
        for entry in self._folding.all():
            await self._write(entry)

    async def _write(self, entry: AuditEntry) -> None:
        """A log that cannot be written to does not stop the node; that is logged."""
        try:
            await self._writer.append(self._lines, msgspec.json.encode(entry))
        except HostFailure as failure:
            log.error("audit log: %s; not noted: %s", failure, entry)

    async def read(self, query: AuditQuery) -> tuple[AuditEntry, ...]:
        """The last ones that are asked for, the oldest first."""
        await self.settle()
        return await last_of(
            self._lines, self._writer, _decode, lambda entry: matches(entry, query), query.limit
        )


def _moment_of(line: bytes) -> float | None:
    try:
        return _decode(line).at.timestamp()
    except msgspec.MsgspecError:
        return None


def matches(entry: AuditEntry, query: AuditQuery) -> bool:
    """Whether an entry is one of those that are asked for. Pure."""
    return (
        (query.user is None or entry.user == query.user)
        and (query.target is None or query.target in (entry.target, entry.name))
        and (query.method is None or entry.method == query.method)
    )


class Auditor:
    """Puts what handlers do into the log."""

    def __init__(
        self, audit: AuditLog, find: FindVm, is_limited: Callable[[Identity], bool] = lambda _: True
    ) -> None:
        """`is_limited`: whether this user's lines are, in number."""
        self._log = audit
        self._find = find
        self._is_limited = is_limited

    def watch(self, bound: Iterable[Bound]) -> tuple[Bound, ...]:
        """The same routes; those that change something are noted."""
        return tuple(self._watched(one) if is_noted(one.route) else one for one in bound)

    async def denied(self, route: Route[Any, Any], identity: Identity, error: AtollError) -> None:
        """Somebody was turned away before a handler was asked."""
        entry = _entry(identity.user, route.name, clock.monotonic(), ("", ""), error)
        await self._log.note(Deed(entry, False, identity.user, self._is_limited(identity)))

    async def own(self, method: str, vm: VM, error: AtollError | None = None) -> None:
        """The node did it by itself, as a rule of the VM says."""
        entry = _entry(NODE_ITSELF, method, clock.monotonic(), (vm.ip, vm.name), error)
        await self._log.note(Deed(entry, True, f"VM {vm.ip}"))

    async def told(self, route: Route[Any, Any], call: Call[Any, Any], detail: str) -> None:
        """A handler knows what is asked for, and is about to do it: see `NOTED_BY_HANDLERS`."""
        entry = _entry(call.identity.user, route.name, clock.monotonic(), self.target(call), None)
        entry = msgspec.structs.replace(entry, detail=bounded(detail))
        await self.note(call.identity, entry, changed=True)

    def _watched(self, bound: Bound) -> Bound:
        if bound.route.name in NOTED_BY_HANDLERS:
            return Bound(bound.route, self._refused(bound))
        if isinstance(bound.route, Stream):
            return Bound(bound.route, self._stream(bound))
        if isinstance(bound.route, Upload):
            return Bound(bound.route, self._upload(bound))
        return Bound(bound.route, self._unary(bound))

    def _unary(self, bound: Bound) -> Callable[[Call[Any, Any]], Awaitable[Any]]:
        async def handler(call: Call[Any, Any]) -> Any:
            async with _Noted(self, bound.route, call) as noted:
                return await noted.done(await bound.handler(call))

        return handler

    def _refused(self, bound: Bound) -> Callable[[Call[Any, Any]], Awaitable[Any]]:
        async def handler(call: Call[Any, Any]) -> Any:
            noted = _Noted(self, bound.route, call)
            try:
                return await bound.handler(call)
            except BaseException as error:
                await noted.__aexit__(type(error), error, None)
                raise

        return handler

    def _upload(self, bound: Bound) -> Callable[[Call[Any, Any], Content], Awaitable[Any]]:
        async def handler(call: Call[Any, Any], content: Content) -> Any:
            async with _Noted(self, bound.route, call) as noted:
                return await noted.done(await bound.handler(call, content))

        return handler

    def _stream(self, bound: Bound) -> Callable[[Call[Any, Any]], AsyncIterator[Any]]:
        async def handler(call: Call[Any, Any]) -> AsyncIterator[Any]:
            async with _Noted(self, bound.route, call) as noted, aclosing(bound.handler(call)) as lines:
                async for line in lines:
                    if isinstance(line, Done):
                        await noted.done(line.result)
                    yield line

        return handler

    def target(self, call: Call[Any, Any]) -> tuple[str, str]:
        """What a call is about: the address and name of a VM, or what else it names."""
        reference = call.params.get("vm", "")
        if reference:
            vm = self._find(reference)
            return (vm.ip, vm.name) if vm is not None else (reference[:64], "")
        spec = getattr(call.body, "spec", None)
        if spec is not None:
            return "", spec.name
        # Whose quota it is, or which share.
        holder = getattr(call.body, "holder", None) or getattr(call.query, "holder", None) or ""
        return (str(holder) or call.params.get("ip", ""))[:64], ""

    def about(self, call: Call[Any, Any]) -> VM | None:
        """The VM that a call is about, as it is now."""
        spec = getattr(call.body, "spec", None)
        reference = call.params.get("vm", "") or (spec.name if spec is not None else "")
        return self._find(reference) if reference else None

    async def note(self, identity: Identity, entry: AuditEntry, *, changed: bool) -> None:
        await self._log.note(Deed(entry, changed, identity.user, self._is_limited(identity)))


class _Noted:
    """One call, noted once: when its result is there, or when it ends without."""

    def __init__(self, auditor: Auditor, route: Route[Any, Any], call: Call[Any, Any]) -> None:
        self._auditor = auditor
        self._route = route
        self._call = call
        self._began = clock.monotonic()
        self._target = auditor.target(call)
        self._before = auditor.about(call)
        self._noted = False

    async def __aenter__(self) -> _Noted:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._noted:
            await self._note(error)

    async def done(self, result: Any) -> Any:
        if isinstance(result, VM):
            self._target = (result.ip, result.name)
        await self._note(None)
        return result

    async def _note(self, error: BaseException | None) -> None:
        self._noted = True
        identity = self._call.identity
        entry = _entry(identity.user, self._route.name, self._began, self._target, error)
        if not entry.brief and self._call.notes:
            entry = msgspec.structs.replace(entry, brief="; ".join(self._call.notes))
        await self._auditor.note(identity, entry, changed=self._changed(error))

    def _changed(self, error: BaseException | None) -> bool:
        """Whether something is different: that is so of a VM that is another value, or there, or gone."""
        is_of_vm = "vm" in self._call.params or self._before is not None or hasattr(self._call.body, "spec")
        if isinstance(self._route, Socket) or not is_of_vm:
            return error is None
        return self._auditor.about(self._call) is not self._before


def _entry(
    user: str, method: str, began: float, target: tuple[str, str], error: BaseException | None
) -> AuditEntry:
    return AuditEntry(
        at=clock.now(),
        user=user,
        method=method,
        result=result_of(error),
        target=target[0],
        name=target[1],
        brief=error.brief if isinstance(error, AtollError) else "",
        elapsed_s=round(clock.monotonic() - began, 6),
    )


def bounded(detail: str) -> str:
    """As much of it as an entry keeps. Pure."""
    return detail if len(detail) <= MOST_DETAIL else f"{detail[:MOST_DETAIL]}… ({len(detail)} characters)"


def is_noted(route: Route[Any, Any]) -> bool:
    """What changes something, and consoles, through which anything can be. Pure."""
    return route.verb != "GET" or isinstance(route, Socket)


def result_of(error: BaseException | None) -> str:
    """`ok`, the code of an error, or what became of a caller that did not wait. Pure."""
    if error is None:
        return "ok"
    if isinstance(error, AtollError):
        return error.code
    return "internal" if isinstance(error, Exception) else "abandoned"
