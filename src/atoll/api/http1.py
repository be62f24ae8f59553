"""The client's side of HTTP/1.1, for those who cannot wait for an import. Effects: reads and writes one connection.

It speaks what services of ours speak: bodies with a length or in chunks, one request at a time, the connection kept;
and what others may answer in their place.
The standard library's client reads headers as mail, and that takes as long to import as TLS does.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import IO

MOST_HEAD = 64 << 10
MOST_LINE = 64 << 20
"""Of a body that is read by lines: one item of a stream."""
PIECE = 64 << 10
UPLOAD_PIECE = 256 << 10
_MOST_SIZE = 100
"""Bytes of the line before a chunk."""


class BadReply(Exception):
    """What came is no answer, or only a part of one."""


class Connection:
    """One connection, which is its own from here on. `host`: as the service is called."""

    def __init__(self, sock: ssl.SSLSocket, host: str) -> None:
        self.sock = sock
        self._host = host
        self._wire = _Wire(sock)
        self.kept = True
        """Whether it can be asked again, once the last reply has ended."""

    def ask(self, verb: str, target: str, body: bytes | IO[bytes], headers: Mapping[str, str]) -> Reply:
        """Send a request. A file as the body comes with a header that says its length."""
        fields = {"Host": self._host, **headers}
        if isinstance(body, bytes) and (body or verb not in ("GET", "DELETE")):
            fields["Content-Length"] = str(len(body))
        lines = (f"{verb} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()))
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        try:
            self._send(head, body)
        except (BrokenPipeError, ConnectionResetError):
            # A service that refuses a large body may close before it has all of it; its answer says why.
            try:
                return self._reply()
            except (OSError, BadReply):
                pass
            raise
        return self._reply()

    def upgrade(self, request: bytes) -> tuple[Reply, bytes]:
        """Send a request to speak something else: the answer, and what came after it if that is 101."""
        self.sock.sendall(request)
        reply = self._reply()
        return reply, self._wire.rest() if reply.status == 101 else b""

    def close(self) -> None:
        self.kept = False
        self.sock.close()

    def _send(self, head: bytes, body: bytes | IO[bytes]) -> None:
        if isinstance(body, bytes):
            self.sock.sendall(head + body)
            return
        self.sock.sendall(head)
        while piece := body.read(UPLOAD_PIECE):
            self.sock.sendall(piece)

    def _reply(self) -> Reply:
        status, headers = parse_head(self._wire.head())
        while 100 <= status < 200 and status != 101:
            status, headers = parse_head(self._wire.head())
        reply = Reply(self._wire, status, headers)
        if reply.ends_with_connection or headers.get("connection", "").lower() == "close":
            self.kept = False
        return reply


class Reply:
    """An answer; its body is read as it comes. Names of headers are in lower case."""

    def __init__(self, wire: _Wire, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._wire = wire
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._left = 0 if self._chunked else _length_of(status, headers)
        """Bytes of the body, or of the chunk that is being read. None: all that comes."""
        self._over = not self._chunked and self._left == 0
        self._ahead = b""
        """What was read in search of the end of a line, and is behind it."""

    @property
    def ends_with_connection(self) -> bool:
        """Nothing says how long it is, as with services that are none of ours."""
        return self._left is None

    @property
    def ended(self) -> bool:
        """Whether all of it was read."""
        return self._over and not self._ahead

    def read(self) -> bytes:
        """All that is left."""
        return b"".join(iter(self.piece, b""))

    def piece(self, most: int = PIECE) -> bytes:
        """The next bytes, as many as are there; none at the end."""
        if self._ahead:
            piece, self._ahead = self._ahead[:most], self._ahead[most:]
            return piece
        if self._over:
            return b""
        if self._left is None:
            piece = self._wire.rest() or self._wire.receive(most)
            self._ahead, piece = piece[most:], piece[:most]
            self._over = not piece
            return piece
        if not self._left:
            self._begin_chunk()
            if self._over:
                return b""
        piece = self._wire.some(min(most, self._left))
        self._left -= len(piece)
        if not self._left:
            if self._chunked:
                self._wire.expect_line_end()
            else:
                self._over = True
        return piece

    def readline(self) -> bytes:
        """A line with its end; none when there is no more."""
        parts: list[bytes] = []
        size = 0
        while piece := self.piece():
            line, end, rest = piece.partition(b"\n")
            parts.append(line + end)
            if end:
                self._ahead = rest + self._ahead
                break
            size += len(piece)
            if size > MOST_LINE:
                raise BadReply("a line that is too long")
        return b"".join(parts)

    def _begin_chunk(self) -> None:
        text = self._wire.line(_MOST_SIZE).partition(b";")[0].strip()
        if not text or not all(character in b"0123456789abcdefABCDEF" for character in text):
            raise BadReply("a chunk without its size")
        self._left = int(text, 16)
        if not self._left:
            while self._wire.line(MOST_HEAD):
                pass
            self._over = True


class _Wire:
    """Bytes of a connection, and those that came already. BadReply where it ends too early."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._have = bytearray()

    def head(self) -> bytes:
        """All lines up to an empty one."""
        return self._until(b"\r\n\r\n", MOST_HEAD)

    def line(self, most: int) -> bytes:
        return self._until(b"\r\n", most)

    def receive(self, most: int) -> bytes:
        """What comes next; nothing at the end."""
        return self._sock.recv(most)

    def some(self, most: int) -> bytes:
        if not self._have:
            piece = self.receive(most)
            if not piece:
                raise BadReply("it closed the connection")
            return piece
        piece = bytes(self._have[:most])
        del self._have[:most]
        return piece

    def expect_line_end(self) -> None:
        if self.line(_MOST_SIZE):
            raise BadReply("a chunk that is longer than it says")

    def rest(self) -> bytes:
        rest = bytes(self._have)
        self._have.clear()
        return rest

    def _until(self, end: bytes, most: int) -> bytes:
        searched = 0
        while (at := self._have.find(end, searched)) < 0:
            if len(self._have) > most:
                raise BadReply("a head that is too long")
            searched = max(0, len(self._have) - len(end) + 1)
            piece = self._sock.recv(PIECE)
            if not piece:
                raise BadReply("it closed the connection")
            self._have += piece
        found = bytes(self._have[:at])
        del self._have[: at + len(end)]
        return found


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer; names in lower case."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or len(words[1]) != 3 or not _is_number(words[1]):
        raise BadReply("what is no answer of HTTP")
    pairs = (line.partition(":") for line in lines[1:])
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length_of(status: int, headers: Mapping[str, str]) -> int | None:
    if status in (101, 204, 304):
        return 0
    text = headers.get("content-length")
    if text is None:
        return None
    if not _is_number(text):
        raise BadReply("an answer of no possible length")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
