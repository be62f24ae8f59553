"""The API for guests: at the link-local address, where one with a certificate reaches its own Hypervisor.

Guests come in by a door of their own: what they take of it, connections, queues and all, is nothing that operators
need. Effects: listening sockets in the service namespaces of bridges. They are opened once the agent has recovered;
until then, and where it is gone, connections are refused.
"""

from __future__ import annotations

import socket

from atoll.errors import HostFailure
from atoll.model.network import METADATA_IP
from atoll.serving.door.door import BACKLOG, Door, Listener
from atoll.system import listening


class ControlPort:
    """The same API as on the node's own addresses, for the guests of every bridge that is named here."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._bridges: dict[str, str] = {}
        """By the namespace of its servers."""
        self._listeners: dict[str, Listener] = {}
        self._door: Door | None = None

    def add(self, namespace: str, bridge: str) -> None:
        """Answer the guests of this bridge too, now or as soon as the agent serves."""
        if namespace in self._bridges:
            return
        if self._door is not None:
            self._serve(namespace, bridge, self._door)
        self._bridges[namespace] = bridge

    def remove(self, namespace: str) -> None:
        """Answer there no more: the namespace goes. Not there is fine."""
        self._bridges.pop(namespace, None)
        if (listener := self._listeners.pop(namespace, None)) is not None:
            listener.close()

    def open(self, door: Door) -> None:
        """The agent serves."""
        self._door = door
        for namespace, bridge in self._bridges.items():
            self._serve(namespace, bridge, door)

    def close(self) -> None:
        """Closed already is fine."""
        self._door = None
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def _serve(self, namespace: str, bridge: str, door: Door) -> None:
        def take(accepted: socket.socket, ip: str) -> None:
            # The same address can be another guest's on another bridge.
            door.take(accepted, f"{ip.partition('%')[0]} on {bridge}")

        try:
            opened = listening.at(METADATA_IP, self._port, BACKLOG, namespace)
        except OSError as error:
            raise HostFailure(
                f"listening on {METADATA_IP}:{self._port} in namespace {namespace}: {error.strerror or error}",
                hint="the agent makes the namespace and its address when it starts",
            ) from error
        self._listeners[namespace] = Listener(opened, take)
