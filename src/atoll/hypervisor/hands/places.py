"""How much of one thing may go on at once, for each VM and for each user. No effects."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from atoll.errors import TooMany
from atoll.model.vm import VM

RETRY_AFTER_S = 5


class Places:
    """`what`: in words, several of them."""

    def __init__(self, doing: str, what: str, per_vm: int, per_user: int) -> None:
        self._doing, self._what = doing, what
        self._most = {"VM": per_vm, "user": per_user}
        self._taken: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def one(self, vm: VM, user: str) -> Iterator[None]:
        """A place for the time of the block; or TooMany."""
        keys = (("VM", vm.instance_id), ("user", user))
        for kind, key in keys:
            most = self._most[kind]
            if self._taken[kind, key] >= most:
                raise TooMany(
                    f"{self._doing}: {kind} {vm.name if kind == 'VM' else user} has {most} {self._what}",
                    retry_after_s=RETRY_AFTER_S,
                    hint="wait until one of them has ended",
                )
        self._taken.update(keys)
        try:
            yield
        finally:
            self._taken.subtract(keys)
            for taken in keys:
                if not self._taken[taken]:
                    del self._taken[taken]
