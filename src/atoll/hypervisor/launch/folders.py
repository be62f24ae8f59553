"""The folders of a node that guests may have: what its configuration and its operators allow, looked at on the host.

Effects: reads directories. What may be allowed, and for whom, is decided in atoll.plan.shares.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atoll.drivers.machine.base import SharedFolder
from atoll.errors import AtollError, Conflict
from atoll.model.share import Share, ShareMount, ShareOrigin
from atoll.plan import shares
from atoll.plan.shares import Owner, ShareRules
from atoll.system import folders

_NO_RULES = ShareRules()


class Folders:
    """Those of one node. `given` are the ones that were allowed by calls, at this moment."""

    def __init__(self, rules: ShareRules = _NO_RULES, given: Callable[[], tuple[Share, ...]] = tuple) -> None:
        self.rules = rules
        self._given = given

    def all(self) -> dict[str, tuple[Share, ShareOrigin]]:
        return shares.all_shares(self.rules, self._given())

    def by_name(self) -> dict[str, Share]:
        return {name: share for name, (share, _) in self.all().items()}

    def look(self, share: Share) -> folders.Folder:
        """The folder as it is on the host now; Conflict when no guest can have it. Waits for a disk."""
        found = folders.look(Path(share.path), tuple(map(Path, self.rules.forbidden)))
        if why := shares.owner_problem(share, Owner(found.uid, found.gid)):
            raise Conflict(
                why, hint=f"give it to a user and a group: chown; or allow it with --read-only: {share.path}"
            )
        return found

    def problem(self, share: Share) -> str:
        """Why no guest can have it just now; empty: they can. Waits for a disk."""
        try:
            self.look(share)
        except AtollError as error:
            return error.brief
        return ""

    def folder(self, vm: str, mount: ShareMount) -> SharedFolder:
        """What a machine is started with. Conflict or NotFound when that cannot be. Waits for a disk."""
        doing = f"starting VM {vm}"
        share = shares.find(self.by_name(), mount.name, doing)
        if share.read_only and not mount.read_only:
            raise Conflict(
                f"{doing}: share {share.name} is read-only by now",
                hint=f"atoll vm change {vm} --share {mount.name}:{mount.path}:ro",
            )
        try:
            found = self.look(share if not mount.read_only else _read_only(share))
        except Conflict as error:
            raise Conflict(f"{doing}: share {share.name}: {error.brief}", hint=error.hint) from None
        return SharedFolder(
            share.name, found.path, mount.path, mount.read_only, found.uid, found.gid, found.node
        )


def _read_only(share: Share) -> Share:
    return Share(share.name, share.path, read_only=True)
