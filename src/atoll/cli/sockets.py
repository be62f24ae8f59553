"""A WebSocket to a service that may have several addresses. Effects: TCP and TLS to the service."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from atoll.api.async_client import AsyncClient
from atoll.api.route import Socket
from atoll.cli.terminal import printable
from atoll.errors import AtollError, Unreachable

WebSocket = aiohttp.ClientWebSocketResponse


@contextlib.asynccontextmanager
async def connected(
    addresses: Sequence[tuple[str, int]],
    tls: ssl.SSLContext,
    route: Socket[Any, Any],
    params: Mapping[str, str],
    query: Any = None,
) -> AsyncIterator[WebSocket]:
    """The first that answers."""
    failures: list[str] = []
    for address in addresses:
        async with contextlib.AsyncExitStack() as attempt:
            client = await attempt.enter_async_context(AsyncClient([address], tls))
            try:
                socket = await attempt.enter_async_context(client.connect(route, params, query=query))
            except Unreachable as error:
                failures.append(error.brief)
                continue
            except aiohttp.ClientError as error:
                failures.append(f"{address[0]}:{address[1]}: the connection broke: {error}")
                continue
            yield socket
            return
    raise Unreachable(" and ".join(failures), hint="is the service up? see: atoll status")


async def messages(socket: WebSocket, what: str) -> AsyncIterator[aiohttp.WSMessage]:
    """What comes, until the end. If the service tells why it ended, that is an error."""
    while (message := await socket.receive()).type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
        yield message
    if message.type is aiohttp.WSMsgType.CLOSE and message.data == aiohttp.WSCloseCode.INTERNAL_ERROR:
        why = printable(message.extra or "it failed")
        raise AtollError(f"the service ended the {what}: {why}", hint="see: atoll vm show, atoll vm log")
    if socket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
        raise Unreachable(f"the {what}'s connection broke", hint="is the service up? see: atoll status")
