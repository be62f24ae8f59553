"""Handlers of published ports."""

from __future__ import annotations

from atoll.api.publishing import VM_PUBLISH, VM_PUBLISHED, VM_UNPUBLISH, Publish, Unpublish
from atoll.api.route import Bound, Call, bind
from atoll.hypervisor.http.calls import permit_of
from atoll.hypervisor.service import Hypervisor
from atoll.model.publishing import PublishedPort
from atoll.model.vm import VM


class PublishingHandlers:
    def __init__(self, service: Hypervisor) -> None:
        self._service = service
        self._publishing = service.publishing

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(VM_PUBLISH, self.publish),
            bind(VM_UNPUBLISH, self.unpublish),
            bind(VM_PUBLISHED, self.published),
        )

    async def publish(self, call: Call[Publish, None]) -> VM:
        permit = permit_of(self._service, VM_PUBLISH.name, call)
        return await self._publishing.publish(permit, call.body.ports, call.identity)

    async def unpublish(self, call: Call[None, Unpublish]) -> VM:
        permit = permit_of(self._service, VM_UNPUBLISH.name, call)
        return await self._publishing.unpublish(permit, call.query)

    async def published(self, call: Call[None, None]) -> tuple[PublishedPort, ...]:
        permit = permit_of(self._service, VM_PUBLISHED.name, call)
        return await self._publishing.ports(permit.vm)
