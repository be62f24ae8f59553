"""When the certificate of whoever calls comes to its end: said in time, and how to renew it.

Effects: a line on standard error, at most once a day for each certificate; a small file in the user's cache
directory that knows when it was last said. That file is a hint: without it, the line is said more often.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from atoll.cli.cache import cache_dir
from atoll.errors import AtollError
from atoll.identity import validity
from atoll.identity.validity import Validity

SOON = timedelta(days=3)
"""From when on the end is near; for those that live shorter than four times this, a quarter of their life."""
SAID_AGAIN_AFTER = timedelta(days=1)
CLOCKS_DIFFER_BY = timedelta(minutes=5)
"""As much as clocks of machines may be apart. Within it, the node's clock decides what is over."""

_FILE = "expiry.json"
_MAX_CERTIFICATES = 64
_MAX_BYTES = 64 << 10


def is_near(held: Validity, now: datetime) -> bool:
    """The certificate still holds, and not for long."""
    left = held.not_after - now
    return timedelta(0) < left <= min(SOON, held.lifetime / 4)


def is_certainly_over(held: Validity, now: datetime) -> bool:
    """Also where this machine's clock is a little ahead of the node's."""
    return now > held.not_after + CLOCKS_DIFFER_BY


def how_to_renew(cert: Path, remote: str = "") -> str:
    """`remote`: the name of the remote that it is for."""
    if remote:
        return f"ask for a token (atoll remote invite), then: atoll remote add --replace {remote}"
    return f"renew it with: atoll ca renew {cert} (on the machine of its CA)"


def warning(cert: Path, held: Validity, now: datetime, remote: str = "") -> str:
    return f"warning: certificate {cert} ends in {_left(held.not_after - now)}; {how_to_renew(cert, remote)}"


def warn(cert: Path, options: argparse.Namespace, now: datetime, remote: str = "") -> None:
    """Say it, where somebody reads it and it was not said today."""
    if options.quiet or getattr(options, "output", "table") not in ("table", "wide"):
        return
    try:
        held = validity.of_pem(cert.read_bytes())
    except (OSError, AtollError):
        return
    if is_near(held, now) and _not_said_lately(f"{cert.absolute()} {held.not_after:%Y-%m-%dT%H:%M:%SZ}", now):
        sys.stderr.write(f"{warning(cert, held, now, remote)}\n")


def _not_said_lately(key: str, now: datetime, environment: Mapping[str, str] = os.environ) -> bool:
    """And note that it is said now. A note from the future is that of a clock that was wrong."""
    directory = cache_dir(environment)
    if directory is None:
        return True
    path = directory / _FILE
    said = _read(path)
    if key in said and timedelta(0) <= now - said[key] < SAID_AGAIN_AFTER:
        return False
    others = [(known, when) for known, when in said.items() if known != key]
    notes = dict([*others[-(_MAX_CERTIFICATES - 1) :], (key, now)])
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(notes))
        fresh.replace(path)
    return True


def _read(path: Path) -> dict[str, datetime]:
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_MAX_BYTES), type=dict[str, datetime])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {key: when for key, when in found.items() if when.tzinfo is not None}


def _left(left: timedelta) -> str:
    minutes = int(left.total_seconds() // 60)
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} days"
    return f"{minutes // 60} hours" if minutes >= 120 else f"{minutes} minutes"
