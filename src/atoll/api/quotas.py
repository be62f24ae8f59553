"""Quotas: how much of a node users and groups may have. Pure declarations."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, structs

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.errors import Invalid
from atoll.model.checks import Principal, check_principal
from atoll.model.quota import Amount, Holder, HolderKind, Limits, QuotaUse, Resource, check_holder


class QuotaQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose: one of them, or neither for the caller and their groups."""

    user: Principal | None = None
    group: Principal | None = None

    def __post_init__(self) -> None:
        if self.user is not None and self.group is not None:
            raise Invalid("group", self.group, "is one too many beside a user", hint="ask for one of them")
        for name in filter(None, (self.user, self.group)):
            check_principal("name", name)


class OfHolder(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose quota: a user's, a group's, or that of all users who have none of their own (which has no name)."""

    kind: HolderKind
    name: str = ""

    def __post_init__(self) -> None:
        check_holder(self.kind, self.name)

    @property
    def holder(self) -> Holder:
        return Holder(self.kind, self.name)


class SetQuota(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits that are to be different. What is left out stays; null: no limit."""

    kind: HolderKind
    name: str = ""
    vms: Amount | UnsetType | None = UNSET
    milli_cpus: Amount | UnsetType | None = UNSET
    memory_mib: Amount | UnsetType | None = UNSET
    disk_mib: Amount | UnsetType | None = UNSET
    addresses: Amount | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        check_holder(self.kind, self.name)
        self.applied_to(Limits())

    @property
    def holder(self) -> Holder:
        return Holder(self.kind, self.name)

    def applied_to(self, limits: Limits) -> Limits:
        given = {str(each): getattr(self, each) for each in Resource}
        changes = {name: value for name, value in given.items() if value is not UNSET}
        return structs.replace(limits, **changes)


QUOTA_LIST = Unary(
    "quota.list",
    "GET",
    "/v1/quotas",
    summary="What everybody may have who has a quota or owns something, and what they have",
    access=Access.OPERATOR,
    body=NOTHING,
    query=NOTHING,
    result=tuple[QuotaUse, ...],
)
QUOTA_SHOW = Unary(
    "quota.show",
    "GET",
    "/v1/quota",
    summary="What the caller and their groups may have, and have; of others, for operators",
    access=Access.AUTHENTICATED,
    body=NOTHING,
    query=QuotaQuery,
    result=tuple[QuotaUse, ...],
)
QUOTA_SET = Unary(
    "quota.set",
    "PATCH",
    "/v1/quotas",
    summary="Limit what a user, a group, or each user without a quota may have. What they have, they keep",
    access=Access.OPERATOR,
    body=SetQuota,
    query=NOTHING,
    result=QuotaUse,
)
QUOTA_DELETE = Unary(
    "quota.delete",
    "DELETE",
    "/v1/quotas",
    summary="Take a quota away: the default holds then, if there is one. Gone is a success",
    access=Access.OPERATOR,
    body=NOTHING,
    query=OfHolder,
    result=NOTHING,
)

ROUTES = (QUOTA_LIST, QUOTA_SHOW, QUOTA_SET, QUOTA_DELETE)
