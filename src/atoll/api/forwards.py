"""TCP connections to guests, through the API, over a WebSocket. Pure declarations.

Binary frames are the bytes, both ways. A text frame says that no more will come from that side, as TCP does, or why
there is no connection; the other side may go on.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Problem, Socket


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, Meta(ge=1, le=65535, description="a TCP port of the guest, at its first address")]
    check: Annotated[
        bool, Meta(description="only say whether the caller may, and the VM runs; connect to nothing")
    ] = False


class End(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """No more bytes from whoever says it."""

    error: Problem | None = None
    """Why there is no connection, or none any more."""


VM_FORWARD = Socket(
    "vm.forward",
    "GET",
    "/v1/vms/{vm}/forward",
    summary="A TCP connection to a port of the guest, from its node",
    access=Access.OWNER,
    body=NOTHING,
    query=Target,
    heard=End,
    told=End,
    heartbeat_s=None,
)

ROUTES = (VM_FORWARD,)
