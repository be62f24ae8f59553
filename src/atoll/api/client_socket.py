"""A WebSocket of the light client, for one thread: nothing in it waits but `step`. Effects: TCP and TLS."""

from __future__ import annotations

import select
import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType

from atoll.api.websocket import BINARY, CLOSE, PING, PONG, TEXT, Message, Reader, masked
from atoll.errors import AtollError, Unreachable, from_wire

CHUNK = 64 << 10
_RECORD = 16 << 10
_CLOSE_S = 1.0
_NORMAL, _ABNORMAL, _POLICY, _INTERNAL = 1000, 1006, 1008, 1011


class ClientSocket:
    """`rest` is what came after the answer to the upgrade."""

    def __init__(self, sock: ssl.SSLSocket, rest: bytes, where: str) -> None:
        self._sock = sock
        self._where = where
        self._reader = Reader()
        self._out = bytearray()
        self._closed = False
        sock.setblocking(False)
        self._come = self._reader.feed(rest)

    def __enter__(self) -> ClientSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the service to take them."""
        return len(self._out)

    def put(self, message: bytes | str) -> None:
        """Send it, when the service takes it."""
        if isinstance(message, str):
            self._out += masked(TEXT, message.encode())
        else:
            self._out += masked(BINARY, message)

    def push_back(self, message: str) -> None:
        """Have it come again with the next step."""
        self._come = [Message(TEXT, message.encode()), *self._come]

    def step(
        self, others: Mapping[int, int] | None = None, timeout_s: float | None = None, *, hear: bool = True
    ) -> tuple[list[bytes | str], set[int]]:
        """Wait until something can be done, and do it: what came, and those of the other descriptors that are ready.

        `others` are descriptors with the events of poll(2) to wait for. Without `hear` nothing is taken from the
        service. An error when the connection is over, in its own words.
        """
        self._flush()
        come = self._take() if hear else []
        poll = select.poll()
        events = (select.POLLIN if hear else 0) | (select.POLLOUT if self._out else 0)
        poll.register(self._sock, events)
        for descriptor, wanted in (others or {}).items():
            poll.register(descriptor, wanted)
        patience_ms = 0 if come else None if timeout_s is None else max(0, int(timeout_s * 1000))
        ready = {descriptor for descriptor, _ in poll.poll(patience_ms)}
        self._flush()
        if hear and not come:
            come = self._take()
        return come, ready - {self._sock.fileno()}

    def close(self) -> None:
        """Say goodbye, and do not wait for an answer."""
        if self._closed:
            return
        self._closed = True
        self._out += masked(CLOSE, _NORMAL.to_bytes(2, "big"))
        try:
            self._sock.settimeout(_CLOSE_S)
            if len(self._out) <= CHUNK:
                self._sock.sendall(self._out)
        except OSError:
            pass
        finally:
            self._sock.close()

    def _flush(self) -> None:
        try:
            while self._out:
                # The same bytes again after a refusal: TLS has begun with them.
                sent = self._sock.send(bytes(self._out[:_RECORD]))
                del self._out[:sent]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self._broke(error) from None

    def _take(self) -> list[bytes | str]:
        come, self._come = self._come, []
        try:
            data = self._sock.recv(CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return self._understood(come)
        except OSError as error:
            raise self._broke(error) from None
        if not data and not come:
            raise self._broke("the service has gone")
        return self._understood([*come, *self._reader.feed(data)])

    def _understood(self, messages: Iterable[Message]) -> list[bytes | str]:
        found: list[bytes | str] = []
        for message in messages:
            if message.kind == PING:
                self._out += masked(PONG, message.data)
            elif message.kind == TEXT:
                found.append(message.data.decode("utf-8", "replace"))
            elif message.kind == BINARY:
                found.append(message.data)
            elif message.kind == CLOSE:
                if not found:
                    raise self._ended(message.data)
                # What came before it is the caller's first.
                self._come = [message]
                break
        return found

    def _ended(self, data: bytes) -> AtollError:
        code = int.from_bytes(data[:2], "big") if len(data) >= 2 else _ABNORMAL
        why = data[2:].decode("utf-8", "replace")
        if code == _POLICY:
            return from_wire("denied", why or "the call may not go on", "", {})
        if code == _INTERNAL:
            return AtollError(f"the service ended it: {why or 'it failed'}", hint="see: atoll vm show")
        return self._broke(why or "the service has ended it")

    def _broke(self, why: object) -> Unreachable:
        return Unreachable(f"{self._where}: the connection broke: {why}", hint="see: atoll status")
