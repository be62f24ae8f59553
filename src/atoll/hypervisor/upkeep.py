"""Routes of what comes after a create: changes, volumes, what is used, and who did what. Thin handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from atoll.api import changes, observing, volumes
from atoll.api.changes import ChangeVm
from atoll.api.observing import AuditQuery
from atoll.api.route import Bound, Call, Content, Done, bind, bind_download, bind_stream, bind_upload
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeOrder, VolumeStep
from atoll.hypervisor.service import Hypervisor
from atoll.hypervisor.utilisation import Meter, metrics
from atoll.model.audit import AuditEntry
from atoll.model.checks import check_pattern
from atoll.model.utilisation import Utilisation
from atoll.model.vm import VM
from atoll.model.volume import VOLUME_PATTERN
from atoll.serving.audit import AuditLog

Owned = Callable[[str, Call[Any, Any]], VM]
"""The VM that a call names, if its caller may do this to it."""


class Upkeep:
    """One method per route."""

    def __init__(self, service: Hypervisor, meter: Meter, audit: AuditLog, owned: Owned) -> None:
        self._service = service
        self._meter = meter
        self._audit = audit
        self._owned = owned

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(changes.VM_CHANGE, self.change),
            bind(changes.VM_BECOME_PRIMARY_OWNER, self.become_primary_owner),
            bind(changes.VM_ACKNOWLEDGE, self.acknowledge),
            bind_stream(volumes.VOLUME_ADD, self.add_volume),
            bind_upload(volumes.VOLUME_UPLOAD, self.upload_volume),
            bind_stream(volumes.VOLUME_CHANGE, self.change_volume),
            bind(volumes.VOLUME_REORDER, self.reorder_volumes),
            bind(volumes.VOLUME_DELETE, self.delete_volume),
            bind(observing.UTILISATION, self.utilisation),
            bind_download(observing.METRICS, self.metrics),
            bind_stream(observing.AUDIT, self.audit),
        )

    async def change(self, call: Call[ChangeVm, None]) -> VM:
        vm = self._owned("vm.change", call)
        return await self._service.changes.change(vm.ip, call.body, call.identity)

    async def become_primary_owner(self, call: Call[None, None]) -> VM:
        vm = self._owned("vm.become-primary-owner", call)
        return await self._service.changes.become_primary_owner(vm.ip, call.identity)

    async def acknowledge(self, call: Call[None, None]) -> VM:
        return self._service.acknowledgements.come(self._owned("vm.acknowledge", call).ip)

    def add_volume(self, call: Call[AddVolume, None]) -> AsyncIterator[VolumeStep | Done[VM]]:
        return self._service.volumes.add(self._owned("volume.add", call).ip, call.body)

    async def upload_volume(self, call: Call[None, UploadVolume], content: Content) -> VM:
        vm = self._owned("volume.upload", call)
        return await self._service.volumes.upload(vm.ip, _volume(call), call.query, content)

    def change_volume(self, call: Call[ChangeVolume, None]) -> AsyncIterator[VolumeStep | Done[VM]]:
        vm = self._owned("volume.change", call)
        return self._service.volumes.change(vm.ip, _volume(call), call.body)

    async def reorder_volumes(self, call: Call[VolumeOrder, None]) -> VM:
        return await self._service.volumes.reorder(self._owned("volume.reorder", call).ip, call.body.names)

    async def delete_volume(self, call: Call[None, None]) -> VM:
        return await self._service.volumes.delete(self._owned("volume.delete", call).ip, _volume(call))

    async def utilisation(self, call: Call[None, None]) -> Utilisation:
        return self._meter.read()

    async def metrics(self, call: Call[None, None]) -> AsyncIterator[bytes]:
        yield metrics(self._service.node(), self._meter.read())

    async def audit(self, call: Call[None, AuditQuery]) -> AsyncIterator[AuditEntry | Done[None]]:
        for entry in await self._audit.read(call.query):
            yield entry
        yield Done(None)


def _volume(call: Call[Any, Any]) -> str:
    return check_pattern("volume", call.params["volume"], VOLUME_PATTERN, "the name of a volume")
