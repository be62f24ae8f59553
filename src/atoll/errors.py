"""One tree of errors: a stable code, a brief that says what failed, a hint that says what to do next.

The HTTP status travels on the wire, the exit status is what a script sees; both follow from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class AtollError(Exception):
    """Base of all errors that a user may see. The brief is lower case and has no full stop."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1

    def __init__(self, brief: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(brief)
        self.brief = brief
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})


class HostFailure(AtollError):
    """The host refused or failed an operation: a command, a file, a link."""

    code = "host_failure"


class Invalid(AtollError):
    """Well formed, and makes no sense: names the field and the value."""

    code = "invalid"
    http_status = 422
    exit_status = 2

    def __init__(self, field: str, value: object, why: str, *, hint: str = "") -> None:
        shown = repr(value) if not isinstance(value, bytes) else f"{len(value)} bytes"
        if len(shown) > 80:
            shown = f"{shown[:60]}… ({len(shown)} characters)"
        super().__init__(
            f"{field} {shown}: {why}", hint=hint, details={"field": field, "value": shown, "why": why}
        )


class Malformed(AtollError):
    """Not even readable as a request: broken JSON, a missing field, a wrong type."""

    code = "malformed"
    http_status = 400
    exit_status = 2


class TooLarge(AtollError):
    """More bytes than the receiver takes."""

    code = "too_large"
    http_status = 413
    exit_status = 2


class NotFound(AtollError):
    """Nothing goes by that name here."""

    code = "not_found"
    http_status = 404
    exit_status = 3


class Conflict(AtollError):
    """It clashes with what is there: a name in use, a state that forbids it."""

    code = "conflict"
    http_status = 409
    exit_status = 4


class Unauthenticated(AtollError):
    """No certificate, or one that is expired, revoked or of another CA."""

    code = "unauthenticated"
    http_status = 401
    exit_status = 5


class Denied(AtollError):
    """Known, and not allowed."""

    code = "denied"
    http_status = 403
    exit_status = 5


class TooMany(AtollError):
    """The caller has had its share: of calls in a second, of open streams, of VMs under way."""

    code = "too_many"
    http_status = 429
    exit_status = 9

    def __init__(self, brief: str, *, retry_after_s: int, hint: str = "") -> None:
        super().__init__(brief, hint=hint, details={"retry_after_s": max(1, retry_after_s)})


class NoCapacity(AtollError):
    """The node has too little of something left."""

    code = "no_capacity"
    http_status = 507
    exit_status = 6


class PoolEmpty(NoCapacity):
    """No free address."""

    code = "pool_empty"


class OverQuota(NoCapacity):
    """The node may have it; a user or a group has had its share."""

    code = "over_quota"


class Unreachable(AtollError):
    """Nobody answers there."""

    code = "unreachable"
    http_status = 502
    exit_status = 7


class TimedOut(AtollError):
    """It did not happen in time."""

    code = "timed_out"
    http_status = 504
    exit_status = 8


def _tree(root: type[AtollError]) -> dict[str, type[AtollError]]:
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_wire(code: str, brief: str, hint: str, details: Mapping[str, Any]) -> AtollError:
    """The error that a peer sent, as the type that it was there. An unknown code stays an AtollError."""
    kind = _tree(AtollError).get(code, AtollError)
    error = kind.__new__(kind)
    AtollError.__init__(error, brief, hint=hint, details=details)
    return error
