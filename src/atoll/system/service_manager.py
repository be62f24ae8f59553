"""What a service tells whoever started it: the protocol of sd_notify(3). Effects: one datagram."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Who waits to hear from us, if anybody does. Nothing that we start hears of it."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop(_VARIABLE, "")

    def tell(self, state: str) -> None:
        """READY=1, STOPPING=1, STATUS=…; nobody listening is fine."""
        if not self._address:
            return
        # A name that begins with @ is in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(state.encode(), address)
