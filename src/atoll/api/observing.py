"""What a node uses, and who did what on it. Pure declarations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Download, Stream, Unary
from atoll.model.audit import AuditEntry
from atoll.model.checks import Principal
from atoll.model.history import HistoryEntry
from atoll.model.utilisation import Utilisation
from atoll.model.vm import Moment

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_ENTRIES = 100_000


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries: the last so many of this user, of this VM, of this method."""

    limit: Annotated[int, Meta(ge=1, le=MAX_ENTRIES)] = 1000
    user: Principal | None = None
    target: Annotated[str, Meta(max_length=128)] | None = None
    """The IP or name of a VM, or what else it was done to."""
    method: Annotated[str, Meta(max_length=64)] | None = None


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries: the last so many of this VM, since this moment; then what comes."""

    limit: Annotated[int, Meta(ge=1, le=MAX_ENTRIES)] = 1000
    target: Annotated[str, Meta(max_length=128)] | None = None
    """The IP or name of a VM."""
    since: Moment | None = None
    follow: bool = False


UTILISATION = Unary(
    "utilisation.show",
    "GET",
    "/v1/utilisation",
    summary="What the node and each VM uses, as counters and amounts",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=Utilisation,
)
METRICS = Download(
    "metrics.show",
    "GET",
    "/metrics",
    summary="The same, and what the node has, for Prometheus",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    content_type=PROMETHEUS,
)
HISTORY = Stream(
    "event.history",
    "GET",
    "/v1/events/history",
    summary="What happened to VMs, with what changed, the oldest first; kept across restarts",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=HistoryQuery,
    item=HistoryEntry,
    result=NOTHING,
)
AUDIT = Stream(
    "audit.list",
    "GET",
    "/v1/audit",
    summary="Who did what, the oldest first",
    access=Access.OPERATOR,
    body=NOTHING,
    query=AuditQuery,
    item=AuditEntry,
    result=NOTHING,
)

ROUTES = (UTILISATION, METRICS, HISTORY, AUDIT)
