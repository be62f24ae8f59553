"""All routes of a Hypervisor, each bound to its handler; calls that change something are audited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from atoll.api.hands import VM_EXEC
from atoll.api.route import Bound
from atoll.api.ssh import VM_SSH
from atoll.hypervisor.consoles.bootlog import BootLogs
from atoll.hypervisor.http.consoles import ConsoleHandlers
from atoll.hypervisor.http.hands import HandsHandlers
from atoll.hypervisor.http.joining import JoiningHandlers
from atoll.hypervisor.http.node import NodeHandlers
from atoll.hypervisor.http.observing import ObservingHandlers
from atoll.hypervisor.http.publishing import PublishingHandlers
from atoll.hypervisor.http.quotas import QuotaHandlers
from atoll.hypervisor.http.shares import ShareHandlers
from atoll.hypervisor.http.ssh import SshHandlers
from atoll.hypervisor.http.vms import VmHandlers
from atoll.hypervisor.http.volumes import VolumeHandlers
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.utilisation import Meter
from atoll.hypervisor.vms.records import Records
from atoll.identity.enrolment import Enrolment
from atoll.images.store import ImageStore
from atoll.serving.audit import AuditLog, Auditor
from atoll.serving.event_log import EventLog


class Backstage(Struct, frozen=True):
    """What handlers read beside the service."""

    records: Records
    images: ImageStore
    logs: BootLogs
    meter: Meter
    audit: AuditLog
    event_log: EventLog
    measured: Callable[[], Iterable[Metric]]
    """The metrics of the agent itself and of its network."""
    enrolment: Enrolment


class Handlers:
    def __init__(self, service: Hypervisor, backstage: Backstage) -> None:
        self.auditor = Auditor(
            backstage.audit, service.vms.find, lambda identity: not service.operators.include(identity)
        )
        self._nouns = (
            JoiningHandlers(backstage.enrolment),
            NodeHandlers(service, backstage.images),
            QuotaHandlers(service),
            ShareHandlers(service, service.folders),
            VmHandlers(service, backstage.records),
            VolumeHandlers(service),
            ConsoleHandlers(service, backstage.logs),
            HandsHandlers(service, partial(self.auditor.told, VM_EXEC)),
            SshHandlers(service, partial(self.auditor.told, VM_SSH)),
            PublishingHandlers(service),
            ObservingHandlers(
                service, backstage.meter, backstage.audit, backstage.event_log, backstage.measured
            ),
        )

    def bound(self) -> tuple[Bound, ...]:
        return self.auditor.watch(bound for noun in self._nouns for bound in noun.bound())
