"""Who is calling. Pure value; atoll.identity reads it from a certificate."""

from __future__ import annotations

from msgspec import Struct

from atoll.model.checks import Principal, check_principal


class Identity(Struct, frozen=True):
    """The user (subject CN), groups, granted methods and limit that a client certificate states."""

    user: Principal
    groups: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    """What it grants over everything on a node, whoever owns it."""
    limit: frozenset[str] | None = None
    """The only methods that it is good for, whatever it grants and its user owns. None: it has no limit."""

    def __post_init__(self) -> None:
        check_principal("user", self.user)

    def may_call(self, method: str) -> bool:
        """The certificate itself grants this method, or all of its noun, or all; and its limit has it too."""
        return _covers(self.methods, method) and self.is_within_limit(method)

    def is_within_limit(self, method: str) -> bool:
        return self.limit is None or _covers(self.limit, method)

    def among(self, users: tuple[str, ...], groups: tuple[str, ...]) -> bool:
        """Named by user, or by any of the groups."""
        return self.user in users or not self.groups.isdisjoint(groups)


def _covers(patterns: frozenset[str], method: str) -> bool:
    noun = method.split(".", 1)[0]
    return bool(patterns & {method, f"{noun}.*", "*"})
