"""Handlers of the volumes of VMs."""

from __future__ import annotations

from collections.abc import AsyncIterator

from atoll.api import volumes
from atoll.api.route import Bound, Call, Content, Done, bind, bind_stream, bind_upload
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeOrder, VolumeStep
from atoll.hypervisor.http.calls import owned, volume
from atoll.hypervisor.service import Hypervisor
from atoll.model.vm import VM


class VolumeHandlers:
    def __init__(self, service: Hypervisor) -> None:
        self._service = service
        self._volumes = service.volumes

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind_stream(volumes.VOLUME_ADD, self.add),
            bind_upload(volumes.VOLUME_UPLOAD, self.upload),
            bind_stream(volumes.VOLUME_CHANGE, self.change),
            bind(volumes.VOLUME_REORDER, self.reorder),
            bind(volumes.VOLUME_DELETE, self.delete),
        )

    def add(self, call: Call[AddVolume, None]) -> AsyncIterator[VolumeStep | Done[VM]]:
        return self._volumes.add(owned(self._service, "volume.add", call).ip, call.body)

    async def upload(self, call: Call[None, UploadVolume], content: Content) -> VM:
        vm = owned(self._service, "volume.upload", call)
        return await self._volumes.upload(vm.ip, volume(call), call.query, content)

    def change(self, call: Call[ChangeVolume, None]) -> AsyncIterator[VolumeStep | Done[VM]]:
        vm = owned(self._service, "volume.change", call)
        return self._volumes.change(vm.ip, volume(call), call.body)

    async def reorder(self, call: Call[VolumeOrder, None]) -> VM:
        return await self._volumes.reorder(owned(self._service, "volume.reorder", call).ip, call.body.names)

    async def delete(self, call: Call[None, None]) -> VM:
        return await self._volumes.delete(owned(self._service, "volume.delete", call).ip, volume(call))
