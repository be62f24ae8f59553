"""Routes of what a node was given: changed, and taken away. Thin handlers."""

from __future__ import annotations

from typing import Any

from atoll.api import given
from atoll.api.given import ChangeSubnet, RemoveAddress, SetOwners
from atoll.api.route import Bound, Call, bind
from atoll.hypervisor.service import Hypervisor
from atoll.model.checks import check_name
from atoll.model.node import Node


class GivenUpkeep:
    """One method per route."""

    def __init__(self, service: Hypervisor) -> None:
        self._service = service
        self._holdings = service.holdings

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(given.NODE_REMOVE_ADDRESS, self.remove_address),
            bind(given.NODE_CHANGE_SUBNET, self.change_subnet),
            bind(given.NODE_REMOVE_SUBNET, self.remove_subnet),
            bind(given.NODE_SET_OWNERS, self.set_owners),
        )

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


def _subnet(call: Call[Any, Any]) -> str:
    return check_name("subnet", call.params["subnet"])
