"""A WebSocket of the light client, for one thread: nothing in it waits but `step`. Effects: TCP and TLS."""

from __future__ import annotations

import select
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType

from atoll.api.websocket import BINARY, CLOSE, PING, PONG, TEXT, Message, Reader, bulk, masked
from atoll.errors import AtollError, Unreachable, from_wire

CHUNK = 64 << 10
_AT_ONCE = 512 << 10
"""Bytes that are taken from the service before anybody looks at them."""
_CLOSE_S = 1.0
_NORMAL, _ABNORMAL, _POLICY, _INTERNAL = 1000, 1006, 1008, 1011


class ClientSocket:
    """`rest` is what came after the answer to the upgrade."""

    def __init__(self, sock: ssl.SSLSocket, rest: bytes, where: str) -> None:
        self._sock = sock
        self._where = where
        self._reader = Reader()
        self._out: deque[bytes | memoryview] = deque()
        self.unsent = 0
        """Bytes that wait for the service to take them."""
        self._closed = False
        sock.setblocking(False)
        self._come = self._reader.feed(rest)

    def __enter__(self) -> ClientSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, message: str) -> None:
        """Send it, when the service takes it."""
        self._put(masked(TEXT, message.encode()))

    def put_bytes(self, *parts: bytes) -> None:
        """The same for a binary message, of these parts."""
        self._put(bulk(*parts))

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
        self._put(masked(CLOSE, _NORMAL.to_bytes(2, "big")))
        try:
            self._sock.settimeout(_CLOSE_S)
            if self.unsent <= CHUNK:
                self._sock.sendall(b"".join(self._out))
        except OSError:
            pass
        finally:
            self._sock.close()

    def _put(self, frame: bytes) -> None:
        self._out.append(frame)
        self.unsent += len(frame)

    def _flush(self) -> None:
        try:
            while self._out:
                # The same bytes again after a refusal: TLS has begun with them.
                sent = self._sock.send(self._out[0])
                self.unsent -= sent
                rest = memoryview(self._out.popleft())[sent:]
                if rest:
                    self._out.appendleft(rest)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self._broke(error) from None

    def _take(self) -> list[bytes | str]:
        come, self._come = self._come, []
        taken, has_gone = 0, False
        try:
            # A record of TLS at a time is all that it gives.
            while taken < _AT_ONCE and not has_gone:
                data = self._sock.recv(CHUNK)
                taken += len(data)
                has_gone = not data
                come += self._reader.feed(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            if not come:
                raise self._broke(error) from None
        if has_gone and not come:
            raise self._broke("the service has gone")
        return self._understood(come)

    def _understood(self, messages: Iterable[Message]) -> list[bytes | str]:
        found: list[bytes | str] = []
        for message in messages:
            if message.kind == PING:
                self._put(masked(PONG, message.data))
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
