"""Sockets that listen for TCP. Effects: opens them, in a network namespace that is named or that the caller is in."""

from __future__ import annotations

import socket

from atoll.system import namespaces


def at(address: str, port: int, backlog: int, namespace: str | None = None) -> socket.socket:
    """At an address of a network namespace (None: the one that we are in), or at all of one family: 0.0.0.0, ::.

    OSError where somebody else listens there, or the address is not one of it. A socket stays in the namespace that it
    was opened in, and so do the connections that it takes.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def open_here() -> socket.socket:
        return socket.create_server((address, port), family=family, backlog=backlog)

    return open_here() if namespace is None else namespaces.inside(namespace, open_here)
