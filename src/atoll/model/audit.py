"""The audit log: who did what, to which, with which result. Pure value."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

NODE_ITSELF = "atoll"
"""Who did it when it was a rule of a VM and not somebody."""


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """One call that changes something, or that was denied; or several of one kind, which have one line."""

    at: datetime
    user: str
    method: str
    result: str
    """`ok`, or the code of the error."""
    target: str = ""
    """The IP of a VM, or what else it was done to."""
    name: str = ""
    """The name of that VM then."""
    detail: str = ""
    """What exactly was asked for, where that is more than the method says: the words of a command."""
    brief: str = ""
    """What the caller was told went wrong; of a create whose caller did not wait, why it was undone."""
    elapsed_s: float = 0.0
    count: int = 1
    """How many calls these are. Of several, this tells of the last; `target` and `name` are empty if they differ."""
    since: datetime | None = None
    """When the first of several was."""
