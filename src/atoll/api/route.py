"""Routes: one typed declaration each. Pure.

    Unary    one JSON request, one JSON reply
    Stream   one JSON request, then JSON lines: items as they happen, at the end one result or one error
    Download one request, then raw bytes; of a part, a header tells where in the whole it begins
    Upload   raw bytes, then one JSON reply
    Socket   a WebSocket of raw bytes; what the service tells beside them is JSON in text frames

A body or query of NOTHING means that the route takes none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct

from atoll.api.access import Access
from atoll.model.identity import Identity

B = TypeVar("B")
Q = TypeVar("Q")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - item, beside B(ody), Q(uery) and R(esult)

NOTHING = type(None)
MAX_BODY = 64 << 10
"""Bytes of a request body, where a route does not say otherwise."""
OFFSET_HEADER = "Atoll-Offset"


class Problem(Struct, frozen=True):
    """How every error looks on the wire."""

    code: str
    brief: str
    hint: str = ""
    details: dict[str, Any] = {}


class Call(Struct, Generic[B, Q], frozen=True):
    """One request as a handler sees it: checked, decoded, its caller known."""

    identity: Identity
    params: Mapping[str, str]
    body: B
    query: Q
    checks: list[Callable[[], object]] = []
    """What has to stay true while the call is open. A handler adds to it; one that raises an error ends the call."""
    notes: list[str] = []
    """What is to be known of it afterwards beside its result, such as why it was undone. A handler adds to it."""
    source: str = ""
    """The address that it comes from; empty: not known."""


class ByteSocket(Protocol):
    """The server's end of a Socket route."""

    async def receive(self) -> bytes:
        """The next bytes from the client; empty when it has gone."""
        ...

    async def message(self) -> bytes | str:
        """The next frame as it is: binary, or text; empty bytes when the client has gone."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def tell(self, message: Struct) -> None:
        """Something beside the bytes, of the type that the route declares."""
        ...


class Named(Struct, frozen=True):
    """How a route is called, in words and on the wire."""

    name: str
    verb: str
    path: str


class Route(Named, Generic[B, Q], frozen=True, kw_only=True):
    """What all kinds of route have in common."""

    summary: str
    access: Access
    body: type[B]
    query: type[Q]
    max_body: int = MAX_BODY
    """The most bytes that are taken of a request."""

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))

    def url(self, params: Mapping[str, str]) -> str:
        """The path with its parameters filled in, quoted."""
        return re.sub(r"{(\w+)}", lambda match: quote(params[match.group(1)], safe=""), self.path)


class Unary(Route[B, Q], Generic[B, Q, R], frozen=True, kw_only=True):
    result: type[R]


class Stream(Route[B, Q], Generic[B, Q, I, R], frozen=True, kw_only=True):
    item: type[I]
    result: type[R]


class Download(Route[B, Q], Generic[B, Q], frozen=True, kw_only=True):
    content_type: str = "application/octet-stream"
    is_part: bool = False
    """The bytes are a part of something longer: the header Atoll-Offset has the place of the first of them."""


class Upload(Route[B, Q], Generic[B, Q, R], frozen=True, kw_only=True):
    result: type[R]


class Part(Struct, frozen=True):
    """The bytes of a Download that is a part, from this place of the whole on."""

    offset: int
    chunks: AsyncIterator[bytes]


class Content(Struct, frozen=True):
    """The bytes of an Upload as they come, never all of them at once."""

    chunks: AsyncIterator[bytes]
    length: int | None
    """How many there will be, where the sender said so."""


class Socket(Route[B, Q], Generic[B, Q], frozen=True, kw_only=True):
    told: type[Any] = NOTHING
    """What the service tells beside the bytes."""
    first: type[Any] = NOTHING
    """What the client sends first of all, as a text frame."""
    heard: type[Any] = NOTHING
    """What the client says beside the bytes."""
    heartbeat_s: float | None = 20.0
    """How often each side asks whether the other is there. None: left to TCP, for those that may be slow to read."""
    most_message: int = 64 << 10
    """Bytes of a message that the client sends."""


class Done(Struct, Generic[R], frozen=True):
    """The last thing that a stream handler yields."""

    result: R


class Bound(Struct, frozen=True):
    """A route with its handler. Made by the `bind_…` functions, which check the types of both together."""

    route: Route[Any, Any]
    handler: Callable[..., Any]


def bind(route: Unary[B, Q, R], handler: Callable[[Call[B, Q]], Awaitable[R]]) -> Bound:
    return Bound(route, handler)


def bind_stream(
    route: Stream[B, Q, I, R], handler: Callable[[Call[B, Q]], AsyncIterator[I | Done[R]]]
) -> Bound:
    return Bound(route, handler)


def bind_download(route: Download[B, Q], handler: Callable[[Call[B, Q]], AsyncIterator[bytes]]) -> Bound:
    return Bound(route, handler)


def bind_part(route: Download[B, Q], handler: Callable[[Call[B, Q]], Awaitable[Part]]) -> Bound:
    """For a Download that `is_part`."""
    return Bound(route, handler)


def bind_upload(route: Upload[B, Q, R], handler: Callable[[Call[B, Q], Content], Awaitable[R]]) -> Bound:
    return Bound(route, handler)


def bind_socket(
    route: Socket[B, Q], handler: Callable[[Call[B, Q]], Awaitable[Callable[[ByteSocket], Awaitable[None]]]]
) -> Bound:
    """The handler checks, then returns what talks: so that a refusal is an HTTP status, not a dead socket."""
    return Bound(route, handler)
