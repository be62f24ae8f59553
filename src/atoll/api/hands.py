"""Commands in guests, over a WebSocket. Pure declarations; `frame` and `unframe` are all there is to its bytes.

caller                               service
text    Command, first of all
binary  0, then standard input   ─►           at most WINDOW bytes that were not taken yet
text    Control                  ─►
                                 ◄─  binary  1 or 2, then what it wrote there
                                 ◄─  text    Told; one that tells how it ended is last of all
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Problem, Socket
from atoll.errors import Malformed
from atoll.model.command import Command, Size

STDIN, STDOUT, STDERR = 0, 1, 2
MOST_DATA = 256 << 10
"""Bytes of a stream in one frame."""
FIRST_WINDOW = 256 << 10
"""Bytes of standard input that may be sent at first, in frames of an eighth of it at most."""
WINDOW = 2 << 20
"""Bytes of standard input that may be under way. So the service reads on, and sees at once that a caller goes."""


class Control(Struct, frozen=True, forbid_unknown_fields=True):
    """What the caller says beside the bytes: one of these at a time."""

    resize: Size | None = None
    end_of_input: bool = False
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None


class Ended(Struct, frozen=True, omit_defaults=True):
    """How a command ended: with a status, or why not."""

    status: int | None = None
    """Its own; 128 and its number for a signal, 124 when it was out of time, 126 and 127 when it could not be run."""
    timed_out: bool = False
    error: Problem | None = None


class Told(Struct, frozen=True, omit_defaults=True):
    """What the service says beside the bytes: one of these at a time."""

    taken: int = 0
    """So many more bytes of standard input may be sent, beyond the first `FIRST_WINDOW`: at first the rest of
    `WINDOW`, then what was taken."""
    ended: Ended | None = None


VM_EXEC = Socket(
    "vm.exec",
    "GET",
    "/v1/vms/{vm}/exec",
    summary="Run a command in the guest, with its streams and its exit status",
    access=Access.OWNER,
    body=NOTHING,
    query=NOTHING,
    first=Command,
    heard=Control,
    told=Told,
    heartbeat_s=None,
    most_message=MOST_DATA + 1,
)

ROUTES = (VM_EXEC,)


def frame(stream: int, data: bytes) -> bytes:
    """Bytes of a stream as one binary frame."""
    return bytes((stream,)) + data


def unframe(data: bytes, streams: tuple[int, ...]) -> tuple[int, bytes]:
    """The stream and the bytes of a binary frame; Malformed for one that is of none of these."""
    if not data or data[0] not in streams:
        raise Malformed("exec: a frame of no known stream")
    return data[0], data[1:]
