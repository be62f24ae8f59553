"""Who may do what, in one place: by route and by ownership. Pure.

PUBLIC         anyone
AUTHENTICATED  any good certificate
OWNER          the VM's owner users and groups, and whoever passes as OPERATOR
OPERATOR       the node's owner users and groups, and a certificate that grants the method

A certificate with a limit passes none of them, but PUBLIC, for what is not in its limit.
"""

from __future__ import annotations

from msgspec import Struct

from atoll.api.access import Access
from atoll.errors import Denied, Unauthenticated
from atoll.model.identity import Identity
from atoll.model.network import Subnet
from atoll.model.vm import VM


class Operators(Struct, frozen=True):
    """The owners of the node."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def include(self, identity: Identity) -> bool:
        return identity.among(self.users, self.groups)

    @property
    def named(self) -> str:
        """Some of them, for people."""
        return _who(self.users, self.groups)


_NOBODY = Operators()
_SHOWN_WHOLE = 12


def check_route(access: Access, method: str, identity: Identity | None, operators: Operators) -> None:
    """Before the handler runs. An OWNER route still needs check_owner once the VM is known."""
    if access is Access.PUBLIC:
        return
    if identity is None:
        raise Unauthenticated(
            f"{method} needs a client certificate, and none was presented",
            hint="ask an operator for one: atoll ca issue user",
        )
    check_limit(identity, method)
    if access is Access.OPERATOR and not operates(identity, method, operators):
        raise Denied(
            f"{identity.user} may not call {method}: that is for operators of this node,"
            f" {_who(operators.users, operators.groups)}",
            hint=f"ask one of them, or for a certificate with: atoll ca issue user {identity.user} --grant {method}",
            details={"user": identity.user, "method": method},
        )


def check_limit(identity: Identity, method: str) -> None:
    """What a limit leaves out is denied before anything else is asked."""
    if identity.limit is None or identity.is_within_limit(method):
        return
    limit = sorted(identity.limit)
    wanted = " ".join([*limit, method]) if len(limit) < _SHOWN_WHOLE else f"… {method}"
    raise Denied(
        f"{identity.user} may not call {method}: the certificate is limited to {_some(limit) or 'nothing'}",
        hint="use one without a limit, or one whose limit has it:"
        f" atoll ca issue user {identity.user} --limit '{wanted}'",
        details={"user": identity.user, "method": method, "limit": limit[:64]},
    )


def check_owner(identity: Identity, method: str, vm: VM, operators: Operators) -> None:
    check_limit(identity, method)
    if not identity.among(vm.owner_users, vm.owner_groups) and not operates(identity, method, operators):
        raise Denied(
            f"{identity.user} may not call {method} on VM {vm.name}: it belongs to"
            f" {_who(vm.owner_users, vm.owner_groups)}",
            hint="ask an owner, or an operator of the node",
            details={"user": identity.user, "method": method, "vm": vm.name},
        )


def check_subnet(identity: Identity, subnet: Subnet, operators: Operators) -> None:
    """A subnet that names nobody is open to all."""
    if not subnet.allowed_users and not subnet.allowed_groups:
        return
    allowed = identity.among(subnet.allowed_users, subnet.allowed_groups)
    if not allowed and not operators.include(identity):
        raise Denied(
            f"{identity.user} may not use subnet {subnet.id}: it is for"
            f" {_who(subnet.allowed_users, subnet.allowed_groups)}",
            hint="choose another subnet, or ask an operator of the node",
            details={"user": identity.user, "subnet": subnet.id},
        )


def check_owners_given(
    identity: Identity, owner_users: tuple[str, ...], operators: Operators = _NOBODY
) -> None:
    """Whoever makes a VM is one of its owners: nobody has to answer for what they did not ask for.

    Naming nobody means the caller. Operators may make VMs for others.
    """
    if owner_users and identity.user not in owner_users and not operators.include(identity):
        raise Denied(
            f"{identity.user} may not create a VM for {_who(owner_users, ())} alone",
            hint=f"add {identity.user} to the owner users, or name none",
            details={"user": identity.user},
        )


def operates(identity: Identity, method: str, operators: Operators) -> bool:
    """Whether the caller may do this to anything on the node."""
    return identity.is_within_limit(method) and (operators.include(identity) or identity.may_call(method))


def _who(users: tuple[str, ...], groups: tuple[str, ...]) -> str:
    return _some([*users, *(f"group {group}" for group in groups)]) or "nobody"


def _some(names: list[str]) -> str:
    if len(names) > 5:
        names = [*names[:5], f"{len(names) - 5} more"]
    return ", ".join(names)
