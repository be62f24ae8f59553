"""What a node uses, and who did what on it. Pure declarations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Download, Stream, Unary
from atoll.model.audit import AuditEntry
from atoll.model.checks import Principal
from atoll.model.utilisation import Utilisation

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_ENTRIES = 100_000


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries: the last so many of this user, of this VM, of this method."""

    limit: Annotated[int, Meta(ge=1, le=MAX_ENTRIES)] = 1000
    user: Principal | None = None
    target: Annotated[str, Meta(max_length=128)] | None = None
    """The IP or name of a VM, or what else it was done to."""
    method: Annotated[str, Meta(max_length=64)] | None = None


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

ROUTES = (UTILISATION, METRICS, AUDIT)
