"""Who may call a route, as its declaration states it. Pure; atoll.identity.access decides."""

from __future__ import annotations

from enum import StrEnum


class Access(StrEnum):
    PUBLIC = "public"
    """Anyone, without a certificate."""
    AUTHENTICATED = "authenticated"
    """Any valid certificate."""
    OWNER = "owner"
    """The owners of the VM in question, and the node's operators."""
    OPERATOR = "operator"
    """The node's operators."""
