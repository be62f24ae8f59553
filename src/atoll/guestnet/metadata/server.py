"""The metadata server on the wire: HTTP on 169.254.169.254:80 of a bridge's service namespace.

Where a subnet of the bridge has IPv6, on [fd00:ec2::254]:80 as well. A caller is known by the address that it
calls from, which anti-spoofing vouches for. No caller can hold more than its share of connections, memory or
time, whatever it sends or does not send.

Effects: opens listening sockets in a namespace, serves them in the loop.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from aiohttp import web

from atoll.errors import AtollError, HostFailure
from atoll.guestnet.http.connection import Connection, Counters, response
from atoll.guestnet.http.found import TEXT, Found
from atoll.guestnet.http.limits import Limits, Shares
from atoll.guestnet.metadata import ssh
from atoll.guestnet.metadata.guest import NOT_FOUND, Guest
from atoll.guestnet.metadata.guests import Guests
from atoll.guestnet.metadata.tokens import UNAUTHORIZED, Tokens
from atoll.guestnet.metadata.tree import TOKEN_PATH, respond, wants_credentials
from atoll.model.network import METADATA_IP
from atoll.system import clock, namespaces

PORT = 80

_BACKLOG = 128


class MetadataServer:
    """Tells the guests behind one namespace about themselves."""

    def __init__(self, namespace: str, guests: Guests, limits: Limits | None = None) -> None:
        self._namespace = namespace
        self._guests = guests
        self._tokens = Tokens()
        self._limits = limits or Limits()
        self._shares = Shares(self._limits)
        self._http: web.Server | None = None
        self._listeners: dict[str, asyncio.Server] = {}
        self.counters = Counters()

    async def start(self) -> None:
        """Begin to listen. Started already is fine."""
        await self.listen(METADATA_IP)

    async def listen(self, ip: str) -> None:
        """Listen at this address too. Already is fine."""
        if ip in self._listeners:
            return
        try:
            listening = namespaces.inside(self._namespace, lambda: _listen(ip))
        except OSError as error:
            where = f"{ip} port {PORT} in namespace {self._namespace}"
            raise HostFailure(
                f"listening on {where}: {error.strerror or error}",
                hint="the agent makes the namespace and its address when it starts",
            ) from error
        http = self._http = self._http or web.Server(self._handle)
        self._listeners[ip] = await asyncio.get_running_loop().create_server(
            lambda: Connection(http, self._shares, self._limits, self.counters, self._name_of),
            sock=listening,
            backlog=_BACKLOG,
        )

    async def close(self) -> None:
        """Stop listening, give running answers a second, then close what is left."""
        if self._http is None:
            return
        for listener in self._listeners.values():
            listener.close()
        connections = [each for each in self._http.connections if isinstance(each, Connection)]
        self._http.pre_shutdown()  # idle ones end here; without it shutdown() would wait for them too
        await self._http.shutdown(timeout=1)
        for connection in connections:
            connection.abort()
        for listener in self._listeners.values():
            await listener.wait_closed()
        self._listeners.clear()
        self._http = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        connection.headers_came()
        self.counters.requests += 1
        await self._keep_pace(connection.caller)
        if wants_credentials(request.path) and (guest := self._guests.guest(connection.ip)):
            await self._guests.settle(guest)
        if request.path == TOKEN_PATH:
            connection.stay_near()
        answer = response(await self._find_answer(request, connection.ip))
        if request.body_exists or connection.is_old:
            answer.force_close()
        return answer

    def _name_of(self, ip: str) -> str:
        guest = self._guests.guest(ip)
        return guest.vm.ip if guest is not None else ip

    async def _keep_pace(self, caller: str) -> None:
        now = clock.monotonic()
        while not self._shares.spend(caller, int(now)):
            await asyncio.sleep(1 - now % 1)
            now = clock.monotonic()

    async def _find_answer(self, request: web.BaseRequest, ip: str) -> Found:
        guest = self._guests.guest(ip)
        if guest is None:
            return NOT_FOUND
        if refusal := _refusal(request):
            return refusal
        vm, now_s = guest.vm, clock.monotonic()
        if request.method == "PUT":
            return self._tokens.give(request.headers, vm.instance_id, now_s)
        if not self._tokens.admits(request.headers, vm.instance_id, now_s, required=vm.imdsv2_required):
            return UNAUTHORIZED
        if request.path == ssh.CERTIFICATE_PATH and guest.ssh_ca:
            return await self._certify(request, guest)
        found = respond(request.path, guest, clock.now())
        if found.status == 200 and request.method == "GET":
            self._guests.read(guest, request.path)
        return found

    async def _certify(self, request: web.BaseRequest, guest: Guest) -> Found:
        key = request.headers.get(ssh.KEY_HEADER)
        if key is None:
            return ssh.NO_KEY
        try:
            return Found(200, TEXT, (await self._guests.certify_host(guest, key)).encode())
        except AtollError as error:
            return ssh.refused(error)


def _refusal(request: web.BaseRequest) -> Found | None:
    """What is wrong with a request, whoever sent it."""
    allowed = ("PUT",) if request.path == TOKEN_PATH else ("GET", "HEAD")
    if request.method not in allowed:
        names = ", ".join(allowed)
        return Found(405, TEXT, f"only {names}\n".encode(), {"Allow": names})
    if request.body_exists:
        return Found(413, TEXT, b"a request has no body here\n")
    return None


def _listen(ip: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ip, PORT))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
