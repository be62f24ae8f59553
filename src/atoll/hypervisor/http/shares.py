"""Handlers of shares: folders of the node that guests may have."""

from __future__ import annotations

from atoll.api.route import Bound, Call, bind
from atoll.api.shares import SHARE_ALLOW, SHARE_DENY, SHARE_LIST, ShareName
from atoll.errors import Conflict
from atoll.hypervisor.launch.folders import Folders
from atoll.hypervisor.service import Hypervisor
from atoll.identity.access import operates
from atoll.model.share import Share, ShareOrigin, ShareUse
from atoll.plan.shares import check_allowed, may_use, use_of, users_of
from atoll.system import aside


class ShareHandlers:
    def __init__(self, service: Hypervisor, folders: Folders) -> None:
        self._service = service
        self._folders = folders

    def bound(self) -> tuple[Bound, ...]:
        return (
            bind(SHARE_LIST, self.list),
            bind(SHARE_ALLOW, self.allow),
            bind(SHARE_DENY, self.deny),
        )

    async def list(self, call: Call[None, None]) -> tuple[ShareUse, ...]:
        may_see = operates(call.identity, SHARE_LIST.name, self._service.operators)
        return tuple(
            [
                await self._use(share, origin, operates=may_see)
                for _, (share, origin) in sorted(self._folders.all().items())
                if may_see or may_use(call.identity, share)
            ]
        )

    async def allow(self, call: Call[Share, None]) -> ShareUse:
        share = call.body
        self._check_not_configured(share.name)
        check_allowed(share, self._folders.rules)
        await aside.run(self._folders.look, share)
        await self._service.holdings.allow_share(share)
        return await self._use(share, ShareOrigin.COMMAND, operates=True)

    async def deny(self, call: Call[None, ShareName]) -> None:
        self._check_not_configured(call.query.name)
        await self._service.holdings.deny_share(call.query.name)

    async def _use(self, share: Share, origin: ShareOrigin, *, operates: bool) -> ShareUse:
        problem = await aside.run(self._folders.problem, share) if operates else ""
        vms = users_of(share.name, self._service.vms.list())
        return use_of(share, origin, vms, operates=operates, problem=problem)

    def _check_not_configured(self, name: str) -> None:
        if any(share.name == name for share in self._folders.rules.configured):
            raise Conflict(
                f"share {name}: is in the configuration of the node",
                hint="change it there, under shares, and start the agent anew; VMs run on",
            )
