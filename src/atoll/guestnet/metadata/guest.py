"""Who asks the metadata server, and what an answer consists of. Pure values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import zip_longest

from msgspec import Struct

from atoll.guestnet.http.found import TEXT, Found
from atoll.identity.roles import RoleCredentials
from atoll.model.network import Subnet
from atoll.model.vm import VM, VmNic

JSON, BYTES = "application/json", "application/octet-stream"


class Place(Struct, frozen=True):
    """Where a cloud's tools are told that they are."""

    region: str = "atoll-1"

    @property
    def zone(self) -> str:
        # Tools find the region by taking the last letter off.
        return f"{self.region}a"


class Interface(Struct, frozen=True):
    """One interface of a guest, by its number in the order in which it finds them."""

    number: int
    nic: VmNic
    subnet: Subnet | None


class Guest(Struct, frozen=True):
    """A caller: its VM, and its user data or how to read it. None: it has none."""

    vm: VM
    user_data: bytes | Callable[[], bytes] | None = None
    subnet: Subnet | None = None
    """That of its first interface."""
    credentials: RoleCredentials | None = None
    place: Place = Place()
    extra_subnets: tuple[Subnet, ...] = ()
    """Those of its other interfaces, in their order."""
    ssh_ca: str = ""
    """The public key of the CA whose certificates let its owners in by SSH; empty: there is none."""

    @property
    def interfaces(self) -> list[Interface]:
        subnets = (self.subnet, *self.extra_subnets)
        return [
            Interface(number, nic, subnet)
            for number, (nic, subnet) in enumerate(zip_longest(self.vm.all_nics, subnets))
        ]

    @property
    def host_name(self) -> str:
        """With its domain, where there is one."""
        domain = self.subnet.domain if self.subnet else ""
        return f"{self.vm.name}.{domain}" if domain else self.vm.name

    def read_user_data(self) -> bytes:
        if self.user_data is None:
            return b""
        return self.user_data if isinstance(self.user_data, bytes) else self.user_data()


class Leaf(Struct, frozen=True):
    """What a path holds: at once, or to be read at the moment that it is asked for."""

    body: bytes | Callable[[datetime], bytes]
    content_type: str = TEXT

    def read(self, now: datetime) -> bytes:
        return self.body if isinstance(self.body, bytes) else self.body(now)


Leaves = dict[str, Leaf]
"""A tree by the paths in it. A path that ends in a slash is a directory with a listing of its own."""


NOT_FOUND = Found(status=404, content_type=TEXT, body=b"not found\n")


def text(value: str) -> Leaf:
    """Without an end of line: tools take a value as it comes."""
    return Leaf(value.encode())
