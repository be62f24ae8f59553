"""Handlers of quotas: what users and groups may have of the node, and have."""

from __future__ import annotations

from atoll.api import quotas as routes
from atoll.api.quotas import OfHolder, QuotaQuery, SetQuota
from atoll.api.route import Bound, Call, bind
from atoll.errors import Denied
from atoll.hypervisor.service import Hypervisor
from atoll.identity.access import operates
from atoll.model.identity import Identity
from atoll.model.quota import Holder, HolderKind, Limits, QuotaUse
from atoll.plan.quotas import all_uses, use_of, used_by


class QuotaHandlers:
    def __init__(self, service: Hypervisor) -> None:
        self._service = service
        self._holdings = service.holdings

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(routes.QUOTA_LIST, self.list),
            bind(routes.QUOTA_SHOW, self.show),
            bind(routes.QUOTA_SET, self.set),
            bind(routes.QUOTA_DELETE, self.delete),
        )

    async def list(self, call: Call[None, None]) -> tuple[QuotaUse, ...]:
        return all_uses(self._holdings.given.quotas, self._service.vms.accounted())

    async def show(self, call: Call[None, QuotaQuery]) -> tuple[QuotaUse, ...]:
        own = own_holders(call.identity)
        if call.query.user is None and call.query.group is None:
            user, *groups = self._uses(own)
            return (user, *(use for use in groups if use.used.vms or use.limits != Limits()))
        return self._uses((self._asked(call.identity, call.query, own),))

    def _asked(self, identity: Identity, query: QuotaQuery, own: tuple[Holder, ...]) -> Holder:
        kind = HolderKind.GROUP if query.user is None else HolderKind.USER
        wanted = Holder(kind, query.user or query.group or "")
        if wanted not in own and not operates(identity, "quota.show", self._service.operators):
            raise Denied(
                f"{identity.user} may not see the quota of {wanted}",
                hint="your own and those of your groups: atoll quota show",
                details={"user": identity.user, "method": "quota.show"},
            )
        return wanted

    def _uses(self, holders: tuple[Holder, ...]) -> tuple[QuotaUse, ...]:
        used = used_by(holders, self._service.vms.accounted())
        return tuple(use_of(holder, self._holdings.given.quotas, used[holder]) for holder in holders)

    async def set(self, call: Call[SetQuota, None]) -> QuotaUse:
        await self._holdings.set_quota(call.body.holder, call.body.applied_to)
        return self._uses((call.body.holder,))[0]

    async def delete(self, call: Call[None, OfHolder]) -> None:
        await self._holdings.delete_quota(call.query.holder)


def own_holders(identity: Identity) -> tuple[Holder, ...]:
    """Whose quotas are the caller's own: theirs, then those of their groups."""
    groups = (Holder(HolderKind.GROUP, group) for group in sorted(identity.groups))
    return (Holder(HolderKind.USER, identity.user), *groups)
