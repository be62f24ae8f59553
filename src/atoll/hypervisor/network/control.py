"""The API for guests: at the link-local address, where one with a certificate reaches its own Hypervisor, and on the
bridges that the node is the router of.

Guests come in by a door of their own: what they take of it, connections, queues and all, is nothing that operators
need. Effects: listening sockets in the service namespaces of bridges, and on bridges. They are opened once the agent
has recovered; until then, and where it is gone, connections are refused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.model.network import METADATA_IP
from atoll.serving.door.door import BACKLOG, Door, Listener
from atoll.system import listening, namespaces


class _Place(Struct, frozen=True):
    """A bridge with guests on it."""

    namespace: str
    """Of its servers."""
    bridge: str
    routed: bool
    """The node has an address on it, and nobody but guests comes in by it."""


class ControlPort:
    """The same API as on the node's own addresses, for the guests of every bridge that is named here."""

    def __init__(self, port: int, addresses: Sequence[str]) -> None:
        """`addresses` are those at which the node serves operators."""
        self._port = port
        self._addresses = addresses
        self._places: dict[str, _Place] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._door: Door | None = None

    async def add(self, namespace: str, bridge: str, *, routed: bool) -> None:
        """Answer the guests of this bridge too, now or as soon as the agent serves."""
        if namespace in self._places:
            return
        place = _Place(namespace, bridge, routed)
        if self._door is not None:
            self._serve(place, self._door)
        self._places[namespace] = place

    async def remove(self, namespace: str) -> None:
        """Answer there no more: the namespace goes. Not there is fine."""
        self._places.pop(namespace, None)
        for listener in self._listeners.pop(namespace, ()):
            listener.close()

    def open(self, door: Door) -> None:
        """The agent serves; operators are listened for already."""
        self._door = door
        for place in self._places.values():
            self._serve(place, door)

    def close(self) -> None:
        """Closed already is fine."""
        self._door = None
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.close()
        self._listeners.clear()

    def _serve(self, place: _Place, door: Door) -> None:
        def take(accepted: socket.socket, ip: str) -> None:
            # The same address can be another guest's on another bridge.
            door.take(accepted, f"{ip.partition('%')[0]} on {place.bridge}")

        opened = self._listeners.setdefault(place.namespace, [])
        for where, listen in self._sockets(place):
            try:
                opened.append(Listener(listen(), take))
            except OSError as error:
                raise HostFailure(
                    f"listening on {where}: {error.strerror or error}",
                    hint="the agent makes the namespace, its address and the bridge when it starts",
                ) from error

    def _sockets(self, place: _Place) -> Iterator[tuple[str, Callable[[], socket.socket]]]:
        def link_local() -> socket.socket:
            return namespaces.inside(place.namespace, lambda: listening.at(METADATA_IP, self._port, BACKLOG))

        yield f"{METADATA_IP}:{self._port} in namespace {place.namespace}", link_local
        for address in self._addresses if place.routed else ():
            on_bridge = partial(listening.on_link, place.bridge, address, self._port, BACKLOG)
            yield f"{address}:{self._port} on bridge {place.bridge}", on_bridge
