"""All whom the servers of one bridge answer. A contract; the node implements it, once for each bridge."""

from __future__ import annotations

from typing import Protocol

from atoll.guestnet.dhcp.leases import Leases
from atoll.guestnet.metadata.guests import Guests
from atoll.guestnet.netboot.clients import Clients


class Callers(Leases, Guests, Clients, Protocol):
    """Who is on one bridge, by what is seen of them there."""
