"""Which folders of a node guests may have, and who may have them. Pure.

A share is allowed by the node's configuration, or by an operator's call. A call may name only what is below the
directories that the configuration leaves to calls (`share_below`): an operator by certificate is not root of the host.
Nothing may name the host's own directories, nor what the node keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, structs

from atoll.errors import Conflict, Denied, Invalid, NotFound
from atoll.model.identity import Identity
from atoll.model.share import MAX_SHARES, Share, ShareMount, ShareOrigin, ShareUse, is_within
from atoll.model.vm import VM

SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr"),
    *("/var/backups", "/var/cache", "/var/lib", "/var/lock", "/var/log", "/var/mail", "/var/run", "/var/spool"),
)  # fmt: skip
"""The host's own: no guest gets anything in them."""
HOMES = ("/home", "/root")
"""May not be shared whole: there are everybody's keys."""


class Owner(Struct, frozen=True):
    """Who a folder belongs to on the host."""

    uid: int
    gid: int

    @property
    def is_root(self) -> bool:
        return 0 in (self.uid, self.gid)


class ShareRules(Struct, frozen=True):
    """What the configuration of a node says of shares."""

    configured: tuple[Share, ...] = ()
    below: tuple[str, ...] = ()
    """Where calls may allow folders."""
    own: tuple[str, ...] = ()
    """What the node keeps: never shared."""

    @property
    def forbidden(self) -> tuple[str, ...]:
        return (*SYSTEM, *self.own)


def refusal_of(path: str, own: Iterable[str] = ()) -> str:
    """Why no guest may have this folder; empty: one may."""
    if path in HOMES:
        return "is where everybody's keys are"
    for directory in (*SYSTEM, *own):
        if is_within(path, directory):
            return f"is in {directory}, which is the host's own" if path != directory else "is the host's own"
        if is_within(directory, path):
            return f"has {directory} in it, which is the host's own"
    return ""


def check_allowed(share: Share, rules: ShareRules) -> None:
    """Refuse what an operator may not allow by a call."""
    if why := refusal_of(share.path, rules.own):
        raise Invalid("path", share.path, why, hint="share a folder that was made for it, such as /srv/data")
    if not any(is_within(share.path, directory) for directory in rules.below):
        where = ", ".join(rules.below) or "nowhere"
        raise Denied(
            f"share {share.name}: {share.path} is not below what this node leaves to its operators: {where}",
            hint="whoever is root there can change share_below in the node's configuration, or name it in shares",
            details={"path": share.path, "below": list(rules.below)},
        )


def check_configured(field: str, shares: Collection[Share]) -> None:
    if len(shares) > MAX_SHARES:
        raise Invalid(field, f"{len(shares)} shares", f"must be at most {MAX_SHARES}")
    names = [share.name for share in shares]
    for share in shares:
        if names.count(share.name) > 1:
            raise Invalid(field, share.name, "is named twice", hint="each has a name of its own")
        if why := refusal_of(share.path):
            raise Invalid(
                field, share.path, why, hint="share a folder that was made for it, such as /srv/data"
            )


def all_shares(rules: ShareRules, given: Iterable[Share]) -> dict[str, tuple[Share, ShareOrigin]]:
    """All of them by name; the configuration comes first."""
    by_call = {share.name: (share, ShareOrigin.COMMAND) for share in given}
    return by_call | {share.name: (share, ShareOrigin.CONFIGURATION) for share in rules.configured}


def find(shares: Mapping[str, Share], name: str, doing: str) -> Share:
    """The one of this name; its absence is no secret."""
    if name not in shares:
        raise NotFound(f"{doing}: share {name!r}: not allowed on this node", hint="see: atoll share list")
    return shares[name]


def may_use(identity: Identity, share: Share) -> bool:
    """Whether it is for this user; operators may use all."""
    return share.everyone or identity.among(share.users, share.groups)


def check_mount(
    mount: ShareMount, shares: Mapping[str, Share], identity: Identity, doing: str, *, operates: bool
) -> None:
    """Refuse a folder that there is not, that is for others, or that is asked for with more rights than it has."""
    share = find(shares, mount.name, doing)
    if not operates and not may_use(identity, share):
        raise Denied(
            f"{doing}: {identity.user} may not use share {share.name}: it is for {shown_users(share)}",
            hint="choose another one, or ask an operator of the node: atoll share list",
            details={"user": identity.user, "share": share.name},
        )
    if share.read_only and not mount.read_only:
        raise Conflict(
            f"{doing}: share {share.name} is read-only",
            hint=f"say so: --share {mount.name}:{mount.path}:ro",
        )


def check_kind(vm: VM, problems: Mapping[str, str]) -> None:
    """Refuse folders for a kind of machine that has none. `problems`: kinds that have them, and why not here."""
    if not vm.shares:
        return
    if vm.driver not in problems:
        raise Conflict(
            f"VM {vm.name}: machines of kind {vm.driver} have no shared folders",
            hint=f"these do: {', '.join(sorted(problems)) or 'none on this node'}",
        )
    if problems[vm.driver]:
        raise Conflict(
            f"VM {vm.name}: shared folders: {problems[vm.driver]}",
            hint="atoll doctor checks what the host lacks",
        )


def owner_problem(share: Share, owner: Owner) -> str:
    """Why guests may not write as the owner of this folder; empty: they may, or do not write."""
    if share.read_only or not owner.is_root:
        return ""
    return f"{share.path} belongs to root of the host, and guests would write there as root"


def with_mounts(
    old: tuple[ShareMount, ...], added: Iterable[ShareMount], removed: Collection[str]
) -> tuple[ShareMount, ...]:
    """Those that a VM has after a change. One that is there already moves to its new place."""
    new = {mount.name: mount for mount in old if mount.name not in removed}
    return tuple((new | {mount.name: mount for mount in added}).values())


def users_of(name: str, vms: Iterable[VM]) -> tuple[str, ...]:
    """The VMs that have a share, or run with it until their next start."""
    return tuple(
        vm.name
        for vm in vms
        if any(mount.name == name for mount in vm.shares)
        or (vm.running is not None and any(mount.name == name for mount in vm.running.shares))
    )


def with_share(shares: tuple[Share, ...], new: Share, users: Collection[str]) -> tuple[Share, ...]:
    """The same again is fine; one that VMs have can get other users, and nothing else."""
    old = next((share for share in shares if share.name == new.name), None)
    if old is not None and users and (old.path, old.read_only) != (new.path, new.read_only):
        raise Conflict(
            f"share {new.name}: is {old.path}, {old.access}, for {_some(users)}",
            hint="take it from them first: atoll vm change VM --no-share " + new.name,
        )
    if old is None and len(shares) >= MAX_SHARES:
        raise Conflict(f"share {new.name}: there are {MAX_SHARES} already", hint="see: atoll share deny")
    if old is None:
        return (*shares, new)
    return tuple(new if share.name == new.name else share for share in shares)


def without_share(shares: tuple[Share, ...], name: str, users: Collection[str]) -> tuple[Share, ...]:
    """Gone is fine; in use is a conflict that names who uses it."""
    if users:
        raise Conflict(
            f"share {name}: is in use by {_some(users)}",
            hint=f"take it from them first: atoll vm change VM --no-share {name}, and start those anew that run",
            details={"share": name, "vms": sorted(users)[:64]},
        )
    return tuple(share for share in shares if share.name != name)


def use_of(
    share: Share, origin: ShareOrigin, vms: tuple[str, ...], *, operates: bool, problem: str = ""
) -> ShareUse:
    """A share as the caller sees it."""
    plain = ShareUse(share.name, share.read_only, origin, share.everyone, vms=vms)
    if not operates:
        return plain
    return structs.replace(plain, path=share.path, users=share.users, groups=share.groups, problem=problem)


def shown_users(share: Share) -> str:
    if share.everyone:
        return "everyone"
    named = [*share.users, *(f"group {group}" for group in share.groups)]
    return ", ".join(named[:5]) + (f", {len(named) - 5} more" if len(named) > 5 else "") or "operators"


def _some(vms: Collection[str]) -> str:
    names = sorted(vms)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"VM {', '.join(names[:5])}{more}"
