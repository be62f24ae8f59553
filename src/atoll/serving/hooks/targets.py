"""Whom a hook tells: a command or a web service. Effects: processes, HTTPS.

Both work where the host reaches others: in the namespace around that of the node, where the node has one of its own.
"""

from __future__ import annotations

import asyncio
import logging
import pwd
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from atoll.errors import HostFailure, Invalid, TimedOut, Unreachable
from atoll.identity import tls
from atoll.serving.hooks.backlog import Notice
from atoll.serving.hooks.config import HookConfig
from atoll.system import namespaces, processes
from atoll.system.processes import Launch

T = TypeVar("T")

OUTPUT_BYTES = 4096
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

log = logging.getLogger(__name__)


class Target(Protocol):
    async def tell(self, notice: Notice) -> None:
        """Once it returns, the notice has been taken; otherwise an AtollError. May be repeated."""
        ...


def target_of(hook: HookConfig, outside: str | None) -> Target:
    return Command(hook, outside) if hook.command else Webhook(hook, outside)


class Command:
    """A program that reads the notice from its standard input, and has taken it when it exits with 0."""

    def __init__(self, hook: HookConfig, outside: str | None) -> None:
        self._hook = hook
        self._outside = outside
        try:
            user = pwd.getpwnam(hook.user)
        except KeyError:
            raise Invalid("hook user", hook.user, "is not on this host") from None
        # Root is root with all that it may; anybody else has no capability and can gain none.
        uid, gid = (user.pw_uid, user.pw_gid) if user.pw_uid else (None, None)
        self._launch = Launch(argv=hook.command, uid=uid, gid=gid, cwd=Path("/"), env=ENVIRONMENT)

    async def tell(self, notice: Notice) -> None:
        status, said = await processes.feed(
            self._launch,
            msgspec.json.encode(notice) + b"\n",
            timeout_s=self._hook.timeout_s,
            keep_bytes=OUTPUT_BYTES,
            namespace=self._outside,
        )
        text = said.decode(errors="replace").strip()
        if status != 0:
            raise HostFailure(f"hook {self._hook.name}: exit status {status}: {text[-200:]!r}")
        if text:
            log.info("hook %s said: %r", self._hook.name, text)


class Webhook:
    """A server that is sent the notice by POST, and has taken it when it answers 2xx."""

    def __init__(self, hook: HookConfig, outside: str | None) -> None:
        self._hook = hook
        self._outside = outside

    async def tell(self, notice: Notice) -> None:
        name, timeout_s = self._hook.name, self._hook.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                status = await self._post(msgspec.json.encode(notice))
        except TimeoutError:
            raise TimedOut(f"hook {name}: no answer within {timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"hook {name}: {error.os_error}") from None
        except (aiohttp.ClientError, OSError) as error:
            # By its kind: in its text there may be the URL, and in that a secret.
            raise Unreachable(f"hook {name}: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise Unreachable(f"hook {name}: it answered {status}", hint="see the log of that service")

    async def _post(self, body: bytes) -> int:
        # Read anew each time: whoever renews a certificate replaces its file.
        context = await asyncio.to_thread(self._context)
        connector = aiohttp.TCPConnector(ssl=context)
        if (outside := self._outside) is not None:
            connector = aiohttp.TCPConnector(
                ssl=context,
                resolver=_ResolverIn(outside),
                socket_factory=lambda address: _socket_in(outside, address),
            )
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(self._hook.url, data=body, headers=headers, allow_redirects=False) as reply,
        ):
            return reply.status

    def _context(self) -> ssl.SSLContext:
        hook = self._hook
        if hook.ca is not None:
            return tls.client_context(hook.ca, hook.certificate, hook.key)
        context = ssl.create_default_context()
        if hook.certificate is not None:
            context.load_cert_chain(hook.certificate, hook.key)
        return context


class _ResolverIn(AbstractResolver):
    """Looks up names in a namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await _in_thread(
            lambda: namespaces.inside(
                self._namespace, lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
            )
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        pass


def _socket_in(namespace: str, address: Any) -> socket.socket:
    family, kind, proto, *_ = address
    return namespaces.socket_in(namespace, family, kind, proto)


async def _in_thread(work: Callable[[], T]) -> T:
    """In a thread that nobody waits for at the end: looking up a name can take long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, name="hook", daemon=True).start()
    return await done
