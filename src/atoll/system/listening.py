"""Sockets that listen for TCP. Effects: opens them, in the network namespace that the caller is in."""

from __future__ import annotations

import socket


def at(address: str, port: int, backlog: int) -> socket.socket:
    """At an address of this host, or at all of one family: 0.0.0.0, [::]. OSError where somebody else listens there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=backlog)
