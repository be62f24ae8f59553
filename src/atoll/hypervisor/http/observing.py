"""Handlers of what is going on: events, what is used, and who did what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing

from prometheus_client.metrics_core import Metric

from atoll.api import hypervisor as routes
from atoll.api import observing
from atoll.api.hypervisor import Since
from atoll.api.observing import AuditQuery, HistoryQuery
from atoll.api.route import Bound, Call, Done, bind, bind_download, bind_stream
from atoll.hypervisor.http.views import event_as_seen, seen_by
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.utilisation import Meter, metrics, quota_families
from atoll.identity.access import operates
from atoll.model.audit import AuditEntry
from atoll.model.event import Event
from atoll.model.history import HistoryEntry
from atoll.model.identity import Identity
from atoll.model.utilisation import Utilisation
from atoll.plan.quotas import all_uses
from atoll.serving.audit import AuditLog
from atoll.serving.event_log import EventLog


class ObservingHandlers:
    def __init__(
        self,
        service: Hypervisor,
        meter: Meter,
        audit: AuditLog,
        event_log: EventLog,
        measured: Callable[[], Iterable[Metric]],
    ) -> None:
        self._service = service
        self._meter = meter
        self._audit = audit
        self._event_log = event_log
        self._measured = measured

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind_stream(routes.EVENTS, self.events),
            bind(observing.UTILISATION, self.utilisation),
            bind_download(observing.METRICS, self.metrics),
            bind_stream(observing.HISTORY, self.history),
            bind_stream(observing.AUDIT, self.audit),
        )

    async def events(self, call: Call[None, Since]) -> AsyncIterator[Event | Done[None]]:
        since = call.query
        async with aclosing(self._service.events.read(since.epoch, since.sequence, since.follow)) as events:
            async for event in events:
                # Operators of this moment: a stream may go on for days.
                yield event_as_seen(event, seen_by(call.identity, "event.list", self._service.operators))
        yield Done(None)

    async def history(self, call: Call[None, HistoryQuery]) -> AsyncIterator[HistoryEntry | Done[None]]:
        async with aclosing(self._event_log.read(call.query)) as entries:
            async for entry in entries:
                yield entry
        yield Done(None)

    async def utilisation(self, call: Call[None, None]) -> Utilisation:
        return self._meter.read()

    async def metrics(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        published = await self._service.publishing.families()
        more = [*self._quota_families(call.identity), *self._measured(), *published]
        yield metrics(self._service.node(), self._meter.read(), more)

    def _quota_families(self, identity: Identity) -> Iterator[Metric]:
        """Of everybody, for those who may see them: operators, and whoever was granted the metrics."""
        if operates(identity, observing.METRICS.name, self._service.operators):
            vms = self._service.vms.accounted()
            yield from quota_families(all_uses(self._service.holdings.given.quotas, vms))

    async def audit(self, call: Call[None, AuditQuery]) -> AsyncIterator[AuditEntry | Done[None]]:
        for entry in await self._audit.read(call.query):
            yield entry
        yield Done(None)
