"""Shares: folders of a node that guests may have. Pure declarations."""

from __future__ import annotations

from msgspec import Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.model.checks import Name, check_name
from atoll.model.share import Share, ShareUse


class ShareName(Struct, frozen=True, forbid_unknown_fields=True):
    """Which one."""

    name: Name

    def __post_init__(self) -> None:
        check_name("share", self.name)

    @property
    def holder(self) -> str:
        """What the audit log calls it."""
        return f"share {self.name}"


SHARE_LIST = Unary(
    "share.list",
    "GET",
    "/v1/shares",
    summary="The folders that the caller may have in guests; for operators all of them, and where they are",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=NOTHING,
    result=tuple[ShareUse, ...],
)
SHARE_ALLOW = Unary(
    "share.allow",
    "PUT",
    "/v1/shares",
    summary="Let guests have a folder of the node, or let others have it than before",
    access=Access.OPERATOR,
    body=Share,
    query=NOTHING,
    result=ShareUse,
)
SHARE_DENY = Unary(
    "share.deny",
    "DELETE",
    "/v1/shares",
    summary="Let no guest have a folder any longer; refused while VMs have it. Gone is a success",
    access=Access.OPERATOR,
    body=NOTHING,
    query=ShareName,
    result=NOTHING,
)

ROUTES = (SHARE_LIST, SHARE_ALLOW, SHARE_DENY)
