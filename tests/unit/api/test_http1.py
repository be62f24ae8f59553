from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.api.http1 import MOST_HEAD, BadReply, Connection, Reply


class Wire:
    """A connection: what comes, in pieces of these sizes, and what was sent."""

    def __init__(self, comes: bytes, sizes: list[int] | None = None, *, breaks: bool = False) -> None:
        self._comes = comes
        self._sizes = list(sizes or [])
        self._breaks = breaks
        self.sent = b""
        self.closed = False

    def recv(self, most: int) -> bytes:
        size = min(most, self._sizes.pop(0) if self._sizes else most)
        piece, self._comes = self._comes[:size], self._comes[size:]
        return piece

    def sendall(self, data: bytes) -> None:
        self.sent += data
        if self._breaks:
            raise BrokenPipeError

    def close(self) -> None:
        self.closed = True


def connection(wire: Wire) -> Connection:
    return Connection(cast("Any", wire), "node:6976")


def ask(comes: bytes, sizes: list[int] | None = None) -> Reply:
    return connection(Wire(comes, sizes)).ask("GET", "/x", b"", {})


def chunked(parts: list[bytes]) -> bytes:
    chunks = (b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


def with_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


sizes = st.lists(st.integers(1, 9), max_size=200)


@given(st.lists(st.binary(max_size=30), max_size=9), sizes, st.booleans())
def test_a_body_is_read_whole_however_it_arrives(parts: list[bytes], sizes: list[int], in_chunks: bool):
    body = b"".join(parts)
    reply = ask(chunked(parts) if in_chunks else with_length(body), sizes)
    assert reply.read() == body
    assert reply.ended


@given(st.lists(st.binary(max_size=20), max_size=9), sizes, st.booleans())
def test_lines_are_those_of_the_body_and_the_rest_stays(
    parts: list[bytes], sizes: list[int], in_chunks: bool
):
    body = b"\n".join(parts)
    reply = ask(chunked(parts_of(body)) if in_chunks else with_length(body), sizes)
    first = reply.readline()
    assert first == body.split(b"\n")[0] + (b"\n" if b"\n" in body else b"")
    others = list(iter(reply.readline, b""))
    assert first + b"".join(others) == body
    assert all(line.endswith(b"\n") for line in others[:-1])
    assert reply.ended


def parts_of(body: bytes) -> list[bytes]:
    return [body[start : start + 7] for start in range(0, len(body), 7)]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5), sizes)
def test_replies_of_one_connection_do_not_run_into_each_other(bodies: list[bytes], sizes: list[int]):
    wire = Wire(b"".join(chunked(parts_of(body)) + with_length(body) for body in bodies), sizes)
    kept = connection(wire)
    for body in bodies:
        for _ in range(2):
            assert kept.ask("GET", "/x", b"", {}).read() == body
    assert kept.kept


@given(st.binary(max_size=200), sizes)
def test_whatever_comes_is_a_reply_or_refused(comes: bytes, sizes: list[int]):
    try:
        ask(b"HTTP/1.1 200 OK\r\n" + comes, sizes).read()
    except BadReply:
        pass


@pytest.mark.parametrize(
    "comes",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * MOST_HEAD,
    ],
)
def test_what_is_no_answer_or_only_a_part_is_refused(comes: bytes):
    with pytest.raises(BadReply):
        ask(comes).read()


def test_a_request_says_where_to_and_how_much():
    wire = Wire(with_length(b"") * 3)
    kept = connection(wire)
    kept.ask("GET", "/a?b=c", b"", {})
    assert wire.sent == b"GET /a?b=c HTTP/1.1\r\nHost: node:6976\r\n\r\n"
    wire.sent = b""
    kept.ask("POST", "/a", b"{}", {"Content-Type": "application/json"})
    assert wire.sent.endswith(b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    wire.sent = b""
    kept.ask("PUT", "/a", io.BytesIO(b"much"), {"Content-Length": "4"})
    assert wire.sent == b"PUT /a HTTP/1.1\r\nHost: node:6976\r\nContent-Length: 4\r\n\r\nmuch"


def test_a_refusal_is_heard_though_the_request_could_not_be_sent_whole():
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    refused = connection(Wire(refusal, breaks=True))
    reply = refused.ask("PUT", "/a", io.BytesIO(b"much"), {"Content-Length": "4"})
    assert (reply.status, reply.read(), refused.kept) == (413, b"{}", False)
    with pytest.raises(BrokenPipeError):
        connection(Wire(b"", breaks=True)).ask("PUT", "/a", io.BytesIO(b"much"), {"Content-Length": "4"})


def test_what_comes_behind_an_upgrade_is_not_lost():
    wire = Wire(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x01x")
    reply, rest = connection(wire).upgrade(b"GET / HTTP/1.1\r\n\r\n")
    assert (reply.status, reply.headers, rest) == (101, {"upgrade": "websocket"}, b"\x81\x01x")
    reply, rest = connection(Wire(with_length(b"{}"))).upgrade(b"GET / HTTP/1.1\r\n\r\n")
    assert (reply.status, reply.read(), rest) == (200, b"{}", b"")


@given(st.binary(max_size=60), sizes)
def test_a_body_without_a_length_ends_with_the_connection(body: bytes, sizes: list[int]):
    once = connection(Wire(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\n" + body, sizes))
    reply = once.ask("GET", "/x", b"", {})
    assert (reply.read(), reply.ended, once.kept) == (body, True, False)


def test_an_answer_on_the_way_is_not_the_answer():
    assert ask(b"HTTP/1.1 100 Continue\r\n\r\n" + with_length(b"x")).read() == b"x"
