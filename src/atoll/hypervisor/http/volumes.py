"""Handlers of the volumes of VMs."""

from __future__ import annotations

from collections.abc import AsyncIterator

from atoll.api import volumes
from atoll.api.route import Bound, Call, Content, Done, bind, bind_stream, bind_upload
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeOrder, VolumeStep
from atoll.hypervisor.http.calls import permit_of, volume
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
        return self._volumes.add(permit_of(self._service, "volume.add", call), call.body)

    async def upload(self, call: Call[None, UploadVolume], content: Content) -> VM:
        permit = permit_of(self._service, "volume.upload", call)
        return await self._volumes.upload(permit, volume(call), call.query, content)

    def change(self, call: Call[ChangeVolume, None]) -> AsyncIterator[VolumeStep | Done[VM]]:
        permit = permit_of(self._service, "volume.change", call)
        return self._volumes.change(permit, volume(call), call.body)

    async def reorder(self, call: Call[VolumeOrder, None]) -> VM:
        return await self._volumes.reorder(permit_of(self._service, "volume.reorder", call), call.body.names)

    async def delete(self, call: Call[None, None]) -> VM:
        return await self._volumes.delete(permit_of(self._service, "volume.delete", call), volume(call))
