"""Ports of this machine that lead elsewhere. On loopback they are for one user, who is looked up in /proc."""

from __future__ import annotations

import asyncio
import ipaddress
import os

from atoll.errors import Conflict
from atoll.system import loopback

HOST = "127.0.0.1"

Address = tuple[str, int]


def shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_peer(writer: asyncio.StreamWriter, what: str) -> None:
    """Conflict for another user's connection on loopback, where any user of the machine could make one."""
    ours, theirs = writer.get_extra_info("sockname")[:2], writer.get_extra_info("peername")[:2]
    if not ipaddress.ip_address(ours[0]).is_loopback:
        return
    user = loopback.peer_user(ours, theirs)
    if user not in (os.geteuid(), 0):
        who = "somebody who has gone" if user is None else f"user {user}"
        raise Conflict(f"refused a {what} of {who}", hint="only who runs the tunnel may connect to it")
