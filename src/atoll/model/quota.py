"""How much of a node users and groups may have, and have. Pure values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import Principal, check_principal
from atoll.model.size import show_mib

MAX_AMOUNT = 1 << 40
MAX_QUOTAS = 4096
"""Of users, and as many of groups."""

Amount = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]


class Resource(StrEnum):
    """What is counted. The value is the name of the field that holds it."""

    VMS = "vms"
    CPUS = "milli_cpus"
    MEMORY = "memory_mib"
    DISK = "disk_mib"
    ADDRESSES = "addresses"

    def show(self, amount: int) -> str:
        if self is Resource.CPUS:
            return f"{amount / 1000:g}"
        return show_mib(amount) if self in (Resource.MEMORY, Resource.DISK) else str(amount)

    @property
    def word(self) -> str:
        """As commands call it."""
        return {Resource.CPUS: "cpus", Resource.MEMORY: "memory", Resource.DISK: "disk"}.get(self, str(self))


class Amounts(Struct, frozen=True):
    """So much of each."""

    vms: int = 0
    milli_cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    addresses: int = 0

    def of(self, resource: Resource) -> int:
        amount: int = getattr(self, resource)
        return amount

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(self.of(each) + other.of(each) for each in Resource))

    def minus(self, other: Amounts) -> Amounts:
        return Amounts(*(self.of(each) - other.of(each) for each in Resource))


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """At most so much of each; null: any amount that the node has."""

    vms: Amount | None = None
    milli_cpus: Amount | None = None
    memory_mib: Amount | None = None
    disk_mib: Amount | None = None
    addresses: Amount | None = None

    def __post_init__(self) -> None:
        for each in Resource:
            limit = self.of(each)
            if limit is not None and not 0 <= limit <= MAX_AMOUNT:
                raise Invalid(each, limit, f"must be from 0 to {MAX_AMOUNT}")

    def of(self, resource: Resource) -> int | None:
        limit: int | None = getattr(self, resource)
        return limit


class HolderKind(StrEnum):
    USER = "user"
    GROUP = "group"
    DEFAULT = "default"
    """Every user who has no quota of their own, each by themselves."""


class Holder(Struct, frozen=True, order=True):
    """Whose quota it is. That of `default` has no name."""

    kind: HolderKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "users without a quota of their own"

    @property
    def option(self) -> str:
        """As a command names it."""
        return f"--{self.kind} {self.name}".rstrip()


def check_holder(kind: HolderKind, name: str) -> Holder:
    """One that a quota can be given to. (Groups of other issuers' certificates may be called anything.)"""
    if kind is HolderKind.DEFAULT:
        if name:
            raise Invalid("name", name, "is not needed for the default")
    else:
        check_principal("name", name)
    return Holder(kind, name)


class Quota(Struct, frozen=True):
    """That of one user or group."""

    name: Principal
    limits: Limits = Limits()


class Quotas(Struct, frozen=True):
    """All that a node was told."""

    users: tuple[Quota, ...] = ()
    groups: tuple[Quota, ...] = ()
    default: Limits | None = None
    """Of each user who is not named; None: they may have what the node has."""


class QuotaUse(Struct, frozen=True):
    """What a user or a group may have, and has."""

    kind: HolderKind
    name: str
    limits: Limits
    used: Amounts
    free: Limits
    """What is left; never less than nothing, also where a quota was set to less than is used."""
    by_default: bool = False
    """The limits are those of users who have no quota of their own."""
