"""Who is calling. Pure value; atoll.identity reads it from a certificate."""

from __future__ import annotations

from msgspec import Struct

from atoll.model.checks import Principal, check_principal


class Identity(Struct, frozen=True):
    """The user (subject CN), groups and permitted methods that a client certificate states."""

    user: Principal
    groups: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_principal("user", self.user)

    def may_call(self, method: str) -> bool:
        """The certificate itself permits this method, or all of its noun, or all."""
        noun = method.split(".", 1)[0]
        return bool(self.methods & {method, f"{noun}.*", "*"})

    def among(self, users: tuple[str, ...], groups: tuple[str, ...]) -> bool:
        """Named by user, or by any of the groups."""
        return self.user in users or not self.groups.isdisjoint(groups)
