"""What keeps objects. A contract; touches nothing.

A shelf knows names and bytes. That the bytes are what their name says is checked above it, in `images/objects.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from atoll.plan.collection import Kept


class Shelf(Protocol):
    """A place for objects. Blocks; every method may be called from several threads, and again."""

    name: str
    """For people: where it is. Never with a secret in it."""
    together: int
    """How many reads at a time are worth it."""

    def put(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """When it returns all of them are there for good, each whole and changed just now; whatever fails, no part of
        one is there under its name."""
        ...

    def read(self, object_id: str) -> bytes | None:
        """All of it; None when there is none."""
        ...

    def there(self, object_ids: Sequence[str]) -> dict[str, Kept]:
        """Those that there are."""
        ...

    def list(self) -> Iterator[Kept]:
        """All, in any order. What comes or goes meanwhile may be among them or not."""
        ...

    def remove(self, object_ids: Sequence[str]) -> None:
        """Gone is fine."""
        ...

    def close(self) -> None: ...
