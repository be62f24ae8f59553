"""The MACs of what a node itself has on a bridge. Pure.

They are derived, so that a restarted agent finds its links as it left them, and name the node, because bridges of the
same name on several nodes may be on one LAN. All are of the locally administered ones.
"""

from __future__ import annotations

import hashlib

ROUTER_PREFIX = "0a:"


def node_identity(name: str, ip: str) -> str:
    """What tells a node from all others, also tomorrow."""
    return f"{name} {ip}"


def service_mac(node: str, bridge: str) -> str:
    """That of the port behind which the servers of a bridge are."""
    return _mac(0x06, node, bridge)


def router_mac(node: str, bridge: str) -> str:
    """That of a bridge that the node makes for a subnet of its own."""
    return _mac(0x0A, node, bridge)


def _mac(first: int, node: str, bridge: str) -> str:
    digest = hashlib.blake2s(f"{node}\n{bridge}".encode(), digest_size=5).digest()
    return bytes((first, *digest)).hex(":")
