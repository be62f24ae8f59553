"""Handlers of the node itself: what it is, what it was given, its leases and images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from atoll import __version__
from atoll.api import given
from atoll.api import hypervisor as routes
from atoll.api.given import ChangeNode, ChangeSubnet, RemoveAddress, SetOwners
from atoll.api.hypervisor import AddAddress, Follow, Health, InSubnet
from atoll.api.openapi import document
from atoll.api.route import Bound, Call, Done, bind, bind_stream
from atoll.hypervisor.service import Hypervisor
from atoll.images.store import ImageStore
from atoll.model.checks import check_ip, check_name
from atoll.model.image import Image
from atoll.model.lease import Lease, Reservation
from atoll.model.network import Subnet
from atoll.model.node import Node


class NodeHandlers:
    def __init__(self, service: Hypervisor, images: ImageStore) -> None:
        self._service = service
        self._holdings = service.holdings
        self._images = images
        self._document = document("Atoll Hypervisor", __version__, routes.ROUTES, routes.PARAMETERS)

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(routes.HEALTH, self.health),
            bind(routes.OPENAPI, self.openapi),
            bind(routes.NODE_SHOW, self.show),
            bind(routes.NODE_DRAIN, self.drain),
            bind(routes.NODE_UNDRAIN, self.undrain),
            bind(routes.NODE_ADD_SUBNET, self.add_subnet),
            bind(routes.NODE_ADD_ADDRESS, self.add_address),
            bind(given.NODE_CHANGE, self.change),
            bind(given.NODE_REMOVE_ADDRESS, self.remove_address),
            bind(given.NODE_CHANGE_SUBNET, self.change_subnet),
            bind(given.NODE_REMOVE_SUBNET, self.remove_subnet),
            bind(given.NODE_SET_OWNERS, self.set_owners),
            bind(routes.NODE_ADD_LEASE, self.add_lease),
            bind(routes.NODE_DELETE_LEASE, self.delete_lease),
            bind_stream(routes.LEASE_LIST, self.leases),
            bind(routes.IMAGE_LIST, self.images),
        )

    async def health(self, call: Call[None, None]) -> Health:
        return Health(status="serving")

    async def openapi(self, call: Call[None, None]) -> dict[str, Any]:
        return self._document

    async def show(self, call: Call[None, None]) -> Node:
        return self._service.node()

    async def change(self, call: Call[ChangeNode, None]) -> Node:
        await self._holdings.set_overcommit(call.body.changes)
        return self._service.node()

    async def drain(self, call: Call[None, None]) -> Node:
        await self._holdings.drain(True)
        return self._service.node()

    async def undrain(self, call: Call[None, None]) -> Node:
        await self._holdings.drain(False)
        return self._service.node()

    async def add_subnet(self, call: Call[Subnet, None]) -> Node:
        await self._holdings.add_subnet(call.body)
        return self._service.node()

    async def add_address(self, call: Call[AddAddress, None]) -> Node:
        await self._holdings.add_addresses(call.body.subnet, call.body.addresses)
        return self._service.node()

    async def remove_address(self, call: Call[RemoveAddress, None]) -> Node:
        await self._holdings.remove_addresses(call.body.subnet, call.body.ips)
        return self._service.node()

    async def change_subnet(self, call: Call[ChangeSubnet, None]) -> Node:
        await self._holdings.change_subnet(_subnet(call), call.body.changes)
        return self._service.node()

    async def remove_subnet(self, call: Call[None, None]) -> None:
        await self._holdings.remove_subnet(_subnet(call))

    async def set_owners(self, call: Call[SetOwners, None]) -> Node:
        await self._holdings.set_owners(call.body.users, call.body.groups)
        return self._service.node()

    async def add_lease(self, call: Call[Reservation, None]) -> Node:
        await self._holdings.add_lease(call.body)
        return self._service.node()

    async def delete_lease(self, call: Call[None, InSubnet]) -> None:
        await self._holdings.delete_lease(check_ip("ip", call.params["ip"]), call.query.subnet)

    async def leases(self, call: Call[None, Follow]) -> AsyncIterator[Lease | Done[None]]:
        async with aclosing(self._holdings.leases.read(call.query.follow)) as leases:
            async for lease in leases:
                yield lease
        yield Done(None)

    async def images(self, call: Call[None, None]) -> tuple[Image, ...]:
        return self._images.list()


def _subnet(call: Call[Any, Any]) -> str:
    return check_name("subnet", call.params["subnet"])
