"""Keeps the policies of VMs: what is due is done when it is due, also what became due while there was no agent.

Effects: through policies.py. What is due when is decided in atoll.plan.policies, from what is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta

from atoll.errors import AtollError
from atoll.hypervisor.vms.records import Record
from atoll.model.vm import VM
from atoll.plan.policies import Due, Duty, next_due
from atoll.plan.recovery import Want
from atoll.system import steps

log = logging.getLogger(__name__)

RETRY_S = 10.0
LONGEST_SLEEP_S = 3600.0

Act = Callable[[Duty, VM], Awaitable[None]]


class Duties:
    """`act` does what is due to a VM; it may be called again for one that it failed for."""

    def __init__(
        self,
        records: Callable[[], Iterable[Record]],
        drained: Callable[[], bool],
        act: Act,
        now: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._drained = drained
        self._act = act
        self._now = now
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        self._not_before: dict[str, datetime] = {}

    def wake(self) -> None:
        """Something changed: look again."""
        self._news.set()

    async def keep(self) -> None:
        """For ever. Whatever is under way ends with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                next_at = self._begin_due(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._sleep_s(next_at)):
                        await self._news.wait()

    def _begin_due(self, group: asyncio.TaskGroup) -> datetime | None:
        """Begin what is due now; when the next thing is."""
        now, drained = self._now(), self._drained()
        waiting = []
        records = list(self._records())
        alive = {record.vm.instance_id for record in records}
        self._not_before = {key: at for key, at in self._not_before.items() if key in alive}
        for record in records:
            due = _due(record, drained)
            if due is None or record.vm.instance_id in self._busy:
                continue
            at = max(due.at, self._not_before.get(record.vm.instance_id, due.at))
            if at <= now:
                self._busy.add(record.vm.instance_id)
                group.create_task(self._do(due, record.vm))
            else:
                waiting.append(at)
        return min(waiting, default=None)

    async def _do(self, due: Due, vm: VM) -> None:
        try:
            log.info("VM %s %s: %s is due", vm.ip, vm.name, due.duty)
            steps.step("duty.begun")
            await self._act(due.duty, vm)
        except Exception as error:
            # Whatever it is, the policies of the other VMs are kept.
            log.error("VM %s %s: %s: %s", vm.ip, vm.name, due.duty, error, exc_info=not _foreseen(error))
            self._not_before[vm.instance_id] = self._now() + timedelta(seconds=RETRY_S)
        finally:
            self._busy.discard(vm.instance_id)
            self.wake()

    def _sleep_s(self, until: datetime | None) -> float:
        if until is None:
            return LONGEST_SLEEP_S
        return min(max((until - self._now()).total_seconds(), 0.0), LONGEST_SLEEP_S)


def _foreseen(error: Exception) -> bool:
    return isinstance(error, AtollError | OSError)


def _due(record: Record, drained: bool) -> Due | None:
    # One that is not committed is still being made.
    if not record.committed:
        return None
    return next_due(
        acknowledge_by=record.acknowledge_by,
        expires_at=record.vm.expires_at,
        protected=record.vm.protected,
        # One that is to go is not started again; but what was to go by itself, and could not, is tried again.
        restart_at=None if record.want is Want.GONE else record.restart_at,
        drained=drained,
    )
