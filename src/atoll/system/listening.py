"""Sockets that listen for TCP. Effects: opens them, in the network namespace that the caller is in."""

from __future__ import annotations

import socket


def at(address: str, port: int, backlog: int) -> socket.socket:
    """At an address of this host, or at all of one family: 0.0.0.0, [::]. OSError where somebody else listens there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=backlog)
    # Set when the place is ours: others of this process can come beside it (`on_link`), and nobody else can.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return listening


def on_link(link: str, address: str, port: int, backlog: int) -> socket.socket:
    """For what comes in by one link, beside a socket of `at`, with a queue of its own: the kernel prefers this one."""
    listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode() + b"\0")
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
