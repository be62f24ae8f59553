"""Whether users and groups stay within their quotas. Pure.

A VM counts for each of its owner users and each of its owner groups: whoever owns it can free what it holds. It
counts for the same whether it runs or not, as it does for the node: a VM that is stopped keeps its disks and addresses,
and its CPUs and memory stay set aside, so that it can be started at any time.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from atoll.errors import Conflict, OverQuota
from atoll.model.quota import (
    MAX_QUOTAS,
    Amounts,
    Holder,
    HolderKind,
    Limits,
    Quota,
    Quotas,
    QuotaUse,
    Resource,
)
from atoll.model.vm import VM
from atoll.plan import capacity

NOTHING = Amounts()


def demand(vm: VM) -> Amounts:
    """What a VM counts for."""
    wanted = capacity.demand(vm)
    return Amounts(1, wanted.milli_cpus, wanted.memory_mib, wanted.disk_mib, len(vm.all_nics))


def holders(vm: VM) -> tuple[Holder, ...]:
    """For whom it counts."""
    users = (Holder(HolderKind.USER, name) for name in dict.fromkeys(vm.owner_users))
    groups = (Holder(HolderKind.GROUP, name) for name in dict.fromkeys(vm.owner_groups))
    return (*users, *groups)


def used_by_all(vms: Iterable[VM]) -> dict[Holder, Amounts]:
    """What everybody has who owns anything."""
    used: dict[Holder, Amounts] = {}
    for vm in vms:
        wanted = demand(vm)
        for holder in holders(vm):
            used[holder] = used.get(holder, NOTHING).plus(wanted)
    return used


def used_by(some: Iterable[Holder], vms: Iterable[VM]) -> dict[Holder, Amounts]:
    """What these have, each of them. Adds up no more than what is theirs: a node may have thousands of VMs."""
    used = dict.fromkeys(some, NOTHING)
    users = {holder.name for holder in used if holder.kind is HolderKind.USER}
    groups = {holder.name for holder in used if holder.kind is HolderKind.GROUP}
    for vm in vms:
        if users.isdisjoint(vm.owner_users) and groups.isdisjoint(vm.owner_groups):
            continue
        wanted = demand(vm)
        for holder in holders(vm):
            if holder in used:
                used[holder] = used[holder].plus(wanted)
    return used


def limits_of(holder: Holder, quotas: Quotas) -> tuple[Limits | None, bool]:
    """What a holder may have, and whether that is the default. None: what the node has."""
    if holder.kind is HolderKind.DEFAULT:
        return quotas.default, True
    named = quotas.users if holder.kind is HolderKind.USER else quotas.groups
    own = next((quota.limits for quota in named if quota.name == holder.name), None)
    if own is None and holder.kind is HolderKind.USER and quotas.default is not None:
        return quotas.default, True
    return own, False


def check_within(
    new: VM, old: VM | None, quotas: Quotas, vms: Iterable[VM], doing: str, operators: str
) -> None:
    """Refuse a VM that its owners have no quota left for.

    `old` is what it was; None where it is new. What asks for no more always fits, also where a quota was set to less
    than is used.
    """
    if quotas == Quotas():
        return
    used, wanted = used_by(holders(new), vms), demand(new)
    had = demand(old) if old is not None else NOTHING
    owners_before = frozenset(holders(old)) if old is not None else frozenset()
    for holder in holders(new):
        limits, by_default = limits_of(holder, quotas)
        if limits is None:
            continue
        more = wanted.minus(had) if holder in owners_before else wanted
        asked = _Asked(holder, limits, by_default, used[holder], more)
        if asked.over:
            raise _refusal(asked, doing, operators)


class _Asked(Struct, frozen=True):
    """What is asked for on somebody's account."""

    holder: Holder
    limits: Limits
    by_default: bool
    used: Amounts
    more: Amounts

    @property
    def over(self) -> dict[Resource, int]:
        """What there is not enough left of, and the limit of each."""
        return {
            each: limit
            for each in Resource
            if (limit := self.limits.of(each)) is not None
            and self.more.of(each) > 0
            and self.used.of(each) + self.more.of(each) > limit
        }


def _refusal(asked: _Asked, doing: str, operators: str) -> OverQuota:
    holder, used, more = asked.holder, asked.used, asked.more
    short = ", ".join(
        f"{each.word} {each.show(used.of(each))} of {each.show(limit)} used and"
        f" {each.show(more.of(each))} more asked for"
        for each, limit in asked.over.items()
    )
    enough = " ".join(f"--{each.word} {_option(each, used.of(each) + more.of(each))}" for each in asked.over)
    return OverQuota(
        f"{doing}: over the {'default ' if asked.by_default else ''}quota of {holder}: {short}",
        hint="ask for less, or destroy something: VMs that are stopped count too, with all that they hold;"
        f" operators ({operators}) can raise it: atoll quota set {holder.option} {enough}",
        details={
            "holder": {"kind": str(holder.kind), "name": holder.name},
            "over": [
                {"resource": str(each), "limit": limit, "used": used.of(each), "asked": more.of(each)}
                for each, limit in asked.over.items()
            ],
        },
    )


def _option(resource: Resource, amount: int) -> str:
    return resource.show(amount).replace(" ", "")


# --- what is told of them


def use_of(holder: Holder, quotas: Quotas, used: Amounts) -> QuotaUse:
    limits, by_default = limits_of(holder, quotas)
    limits = limits or Limits()
    left = {
        str(each): None if (limit := limits.of(each)) is None else max(0, limit - used.of(each))
        for each in Resource
    }
    return QuotaUse(holder.kind, holder.name, limits, used, Limits(**left), by_default)


def all_uses(quotas: Quotas, vms: Iterable[VM]) -> tuple[QuotaUse, ...]:
    """The default, then everybody who has a quota or owns something: users first, in order of their names."""
    used = used_by_all(vms)
    named = {Holder(HolderKind.USER, quota.name) for quota in quotas.users}
    named |= {Holder(HolderKind.GROUP, quota.name) for quota in quotas.groups}
    known = sorted(named | used.keys(), key=lambda holder: (holder.kind is HolderKind.GROUP, holder.name))
    default = (Holder(HolderKind.DEFAULT),) if quotas.default is not None else ()
    return tuple(use_of(holder, quotas, used.get(holder, NOTHING)) for holder in (*default, *known))


# --- changes of them


def with_limits(quotas: Quotas, holder: Holder, limits: Limits) -> Quotas:
    """The same, and this one has these limits."""
    if holder.kind is HolderKind.DEFAULT:
        return structs.replace(quotas, default=limits)
    without = without_limits(quotas, holder)
    named = without.users if holder.kind is HolderKind.USER else without.groups
    if len(named) >= MAX_QUOTAS:
        raise Conflict(
            f"the quota of {holder}: there are {MAX_QUOTAS} already",
            hint="delete some: atoll quota delete; the default holds for all who have none",
        )
    changed = tuple(sorted((*named, Quota(holder.name, limits)), key=lambda quota: quota.name))
    return structs.replace(without, **{_field(holder): changed})


def without_limits(quotas: Quotas, holder: Holder) -> Quotas:
    """The same, and this one has none of its own. Gone is fine."""
    if holder.kind is HolderKind.DEFAULT:
        return structs.replace(quotas, default=None)
    named = quotas.users if holder.kind is HolderKind.USER else quotas.groups
    left = tuple(quota for quota in named if quota.name != holder.name)
    return structs.replace(quotas, **{_field(holder): left})


def _field(holder: Holder) -> str:
    return "users" if holder.kind is HolderKind.USER else "groups"
