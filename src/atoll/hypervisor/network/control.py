"""The control port on the link-local address: a guest with a certificate reaches its own Hypervisor by it.

Effects: listening sockets in the service namespaces of bridges. They are opened once the agent has recovered;
until then, and where it is gone, connections are refused.
"""

from __future__ import annotations

import socket
import ssl

from aiohttp import web

from atoll.errors import HostFailure
from atoll.model.network import METADATA_IP
from atoll.system import namespaces

BACKLOG = 128


class ControlPort:
    """The same API as on the node's own addresses, in every namespace that is named here."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._namespaces: list[str] = []
        self._sites: dict[str, web.SockSite] = {}
        self._runner: web.AppRunner | None = None
        self._context: ssl.SSLContext | None = None

    async def add(self, namespace: str) -> None:
        """Answer in this namespace too, now or as soon as the agent serves."""
        if namespace in self._namespaces:
            return
        if self._runner is not None:
            await self._serve(namespace)
        self._namespaces.append(namespace)

    async def remove(self, namespace: str) -> None:
        """Answer there no more: the namespace goes. Not there is fine."""
        if namespace in self._namespaces:
            self._namespaces.remove(namespace)
        if (site := self._sites.pop(namespace, None)) is not None:
            await site.stop()

    async def open(self, runner: web.AppRunner, context: ssl.SSLContext) -> None:
        """The agent serves. The sockets are the runner's from here on, and close with it."""
        self._runner, self._context = runner, context
        for namespace in self._namespaces:
            await self._serve(namespace)

    async def _serve(self, namespace: str) -> None:
        assert self._runner is not None
        try:
            listening = namespaces.inside(namespace, self._listen)
        except OSError as error:
            where = f"{METADATA_IP}:{self._port} in namespace {namespace}"
            raise HostFailure(
                f"listening on {where}: {error.strerror or error}",
                hint="the agent makes the namespace and its address when it starts",
            ) from error
        site = web.SockSite(self._runner, listening, ssl_context=self._context, backlog=BACKLOG)
        await site.start()
        self._sites[namespace] = site

    def _listen(self) -> socket.socket:
        return socket.create_server((METADATA_IP, self._port), backlog=BACKLOG)
