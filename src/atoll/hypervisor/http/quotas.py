"""Handlers of quotas: what users and groups may have of the node, and have."""

from __future__ import annotations

from atoll.api import quotas as routes
from atoll.api.quotas import OfHolder, QuotaQuery, SetQuota
from atoll.api.route import Bound, Call, bind
from atoll.errors import Denied
from atoll.hypervisor.service import Hypervisor
from atoll.identity.access import operates
from atoll.model.identity import Identity
from atoll.model.quota import Holder, HolderKind, QuotaUse
from atoll.plan.quotas import NOTHING, all_uses, use_of, used_by_all


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
        used = used_by_all(self._service.vms.accounted())
        quotas = self._holdings.given.quotas
        return tuple(
            use_of(holder, quotas, used.get(holder, NOTHING))
            for holder in self._asked(call.identity, call.query)
        )

    def _asked(self, identity: Identity, query: QuotaQuery) -> tuple[Holder, ...]:
        groups = (Holder(HolderKind.GROUP, group) for group in sorted(identity.groups))
        own = (Holder(HolderKind.USER, identity.user), *groups)
        if query.user is None and query.group is None:
            return own
        kind = HolderKind.GROUP if query.user is None else HolderKind.USER
        wanted = Holder(kind, query.user or query.group or "")
        if wanted not in own and not operates(identity, "quota.show", self._service.operators):
            raise Denied(
                f"{identity.user} may not see the quota of {wanted}",
                hint="your own and those of your groups: atoll quota show",
                details={"user": identity.user, "method": "quota.show"},
            )
        return (wanted,)

    async def set(self, call: Call[SetQuota, None]) -> QuotaUse:
        holder = call.body.holder
        await self._holdings.set_quota(holder, call.body.applied_to)
        used = used_by_all(self._service.vms.accounted())
        return use_of(holder, self._holdings.given.quotas, used.get(holder, NOTHING))

    async def delete(self, call: Call[None, OfHolder]) -> None:
        await self._holdings.delete_quota(call.query.holder)
