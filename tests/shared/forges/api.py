"""Calls of a user of the API who is up to no good: requests by the types of its routes, and WebSockets. Pure."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import inspect

from atoll.api.route import NOTHING, Route, Socket, Upload
from forges.forge import Forge

DEEP = 20_000
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64, 1e308, -0.0, 128.0, [], {}, "", " ", "\x00", "\ud800"),
    *(
        "x" * 5000,
        "../..",
        "10.61.0.10",
        "fd00::1",
        "52:54:00:00:00:01",
        "\x1b[31m",
        "%s%n",
        "a,b",
        [[]],
        {"": {}},
    ),
)
HEADERS = (
    "Accept: */*",
    "Expect: 100-continue",
    "Content-Encoding: gzip",
    "Origin: https://elsewhere.example",
    "Sec-Fetch-Site: cross-site",
    "Range: bytes=0-1",
    "If-Match: *",
    "X-HTTP-Method-Override: DELETE",
    "Forwarded: for=127.0.0.1",
    "Cookie: a=b",
)
TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data", "x")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW")
_ENDLESS = ("event.list", "lease.list", "audit.list")


class ApiForge(Forge):
    """`routes` are called with `references` in the place of VMs."""

    def __init__(self, routes: Sequence[Route[Any, Any]], references: Sequence[str], seed: int) -> None:
        super().__init__(seed)
        self._routes = [route for route in routes if not isinstance(route, Socket)]
        self._sockets = [route for route in routes if isinstance(route, Socket)]
        self._references = references

    def request(self) -> bytes:
        """One that is answered, one way or another."""
        pick = self.random
        route = pick.choice(self._routes)
        verb = route.verb if pick.random() < 0.9 else pick.choice(VERBS)
        body = self._body(route)
        headers = [f"Content-Length: {len(body)}"] if body or self.one_in(8) else []
        if body:
            headers.append(f"Content-Type: {TYPES[0] if pick.random() < 0.9 else pick.choice(TYPES)}")
        headers += pick.sample(HEADERS, k=pick.choice((0, 0, 0, 0, 1, 2)))
        head = "\r\n".join((f"{verb} {self._target(route)} HTTP/1.1", "Host: m", *headers, "", ""))
        return head.encode("latin-1", "replace") + body

    def handshake(self) -> bytes:
        """The beginning of a WebSocket."""
        pick = self.random
        headers = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            f"Sec-WebSocket-Version: {pick.choice((13, 13, 13, 13, 8, 99))}",
            f"Sec-WebSocket-Key: {pick.choice(('AAAAAAAAAAAAAAAAAAAAAA==',) * 6 + ('', 'x', 'é'))}",
        ]
        if self.one_in(6):
            headers.append("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99")
        if self.one_in(6):
            headers.append("Origin: https://elsewhere.example")
        target = self._target(pick.choice(self._sockets))
        return "\r\n".join((f"GET {target} HTTP/1.1", "Host: m", *headers, "", "")).encode(
            "latin-1", "replace"
        )

    def frames(self) -> bytes:
        """What comes behind it."""
        return b"".join(self._frame() for _ in range(self.random.randrange(1, 12)))

    def _frame(self) -> bytes:
        pick = self.random
        first = pick.choice(
            (0x82, 0x82, 0x82, 0x81, 0x02, 0x80, 0x89, 0x8A, 0x88, 0xC2, 0xF2, 0x83, pick.randrange(256))
        )
        payload = self.noise(pick.choice((10, 100, 200, 4000)))
        if self.one_in(12):
            payload = b"x" * 70_000
        masked = 0x80 if pick.random() < 0.95 else 0
        size = len(payload) if pick.random() < 0.95 else pick.choice((0, 126, 65536, 2**40, 2**63))
        if size < 126:
            head = bytes((first, masked | size))
        elif size < 1 << 16:
            head = bytes((first, masked | 126)) + struct.pack("!H", size)
        else:
            head = bytes((first, masked | 127)) + struct.pack("!Q", size)
        return head + (pick.randbytes(4) if masked else b"") + payload

    # --- requests

    def _target(self, route: Route[Any, Any]) -> str:
        pick = self.random

        def filled(_: re.Match[str]) -> str:
            if pick.random() < 0.8:
                return pick.choice(self._references)
            return quote(
                pick.choice(("", "0", "root", "..", "a b", "x" * 300, "é", "%00", "\x1b[31m")), safe="%"
            )

        target = re.sub(r"{\w+}", filled, route.path)
        given = self._query(route)
        if self.one_in(30):
            given = [(f"p{number}", "1") for number in range(pick.randrange(1, 1200))]
        text = urlencode(given, errors="replace")
        return f"{target}?{text}" if text else target

    def _query(self, route: Route[Any, Any]) -> list[tuple[str, Any]]:
        pick = self.random
        given: list[tuple[str, Any]] = [("follow", "false")] if route.name in _ENDLESS else []
        if route.query is NOTHING:
            return [("x", "1")] if self.one_in(10) else given
        for field in inspect.type_info(route.query).fields:  # type: ignore[attr-defined]
            if pick.random() < 0.5 and field.encode_name != "follow":
                value = self._value(field.type, 1)
                given.append((field.encode_name, value))
        return given * 2 if self.one_in(16) else given

    def _body(self, route: Route[Any, Any]) -> bytes:
        pick = self.random
        if isinstance(route, Upload):
            return self.noise(3000)
        if route.body is NOTHING:
            return b"{}" if self.one_in(10) else b""
        match pick.randrange(14):
            case 0:
                return pick.choice(
                    (b"", b"null", b"[]", b"{", b'"', b"{}{}", b"\xff\xfe{}", b"NaN", b"\xef\xbb\xbf{}")
                )
            case 1:
                return pick.choice((b"[", b'{"spec":', b'{"a":[')) * DEEP
            case 2:
                return self.damaged(self._json(route))
            case 3:
                return self.cut(self._json(route))
        return self._json(route)

    def _json(self, route: Route[Any, Any]) -> bytes:
        # Lone surrogates as escapes: so they are JSON, and no text.
        value = self._value(inspect.type_info(route.body), 0)
        return json.dumps(_short(value), ensure_ascii=True).encode()

    def _value(self, kind: inspect.Type, nested: int) -> Any:
        """Mostly of this type."""
        pick = self.random
        if nested and self.one_in(12):
            return pick.choice(ODD_VALUES)
        match kind:
            case inspect.UnionType(types=types):
                return self._value(pick.choice(types), nested + 1)
            case inspect.StructType(fields=fields):
                value = {
                    field.encode_name: self._value(field.type, nested + 1)
                    for field in fields
                    if pick.random() < (0.97 if field.required else 0.3)
                }
                return value | ({"unknown": 1} if self.one_in(30) else {})
            case inspect.DictType(key_type=key, value_type=inner):
                return {str(self._value(key, nested + 1)): self._value(inner, nested + 1) for _ in range(2)}
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                return [self._value(item, nested + 1) for _ in range(pick.randrange(3))]
            case inspect.EnumType(cls=cls):
                return pick.choice(list(cls)).value
            case inspect.LiteralType(values=values):
                return pick.choice(values)
            case inspect.BoolType():
                return pick.choice((True, False))
            case inspect.IntType() | inspect.FloatType():
                return pick.choice((0, 1, 2, 16, 64, 250, 1024, 10**6, 2**53))
            case inspect.BytesType():
                return pick.choice(("", "AAAA", "A" * 4000, "=", "é"))
            case inspect.NoneType():
                return None
            case inspect.Metadata(type=inner):
                return self._value(inner, nested)
        return pick.choice(("blank", "sim", "lan", "web", "started", "dhcp", *self._references))


def _short(value: Any) -> Any:
    """Nobody waits here: what says for how long says little."""
    if isinstance(value, dict):
        return {
            name: 0.05
            if name == "timeout_s" and isinstance(inner, int | float) and inner > 0
            else _short(inner)
            for name, inner in value.items()
        }
    return [_short(inner) for inner in value] if isinstance(value, list) else value
