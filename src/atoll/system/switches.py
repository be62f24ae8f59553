"""Kernel parameters that several clouds of a host need changed: who needs each, and what it was before.

The register is in /run, which a reboot empties, as it sets the parameters back. Whoever needs a parameter last gives it
back as it was before the first. Each call is repeated after a crash, and then ends as if there had been none.

Effects: kernel parameters, one file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.system import files, steps
from atoll.system.directory_lock import mutex
from atoll.system.links import read_sysctl, sysctl

REGISTER = Path("/run/atoll/switches.json")
_LOCK = Path("/run/atoll-switches.lock")


class Claim(Struct, frozen=True):
    """One parameter that is not as it was."""

    before: str
    holders: tuple[str, ...]


def claim(holder: str, keys: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """Note that these, and no others, are needed; what each was before anybody changed it.

    `known`: what the holder knows of that from elsewhere.
    """
    with mutex(_LOCK):
        claims = _read()
        for key in keys:
            found = claims.get(key)
            before = found.before if found else known.get(key) or read_sysctl(key)
            others = found.holders if found else ()
            claims[key] = Claim(before, tuple(sorted({*others, holder})))
        _write(_without(claims, holder, [key for key in claims if key not in keys]))
        steps.step("switches.claimed")
        return {key: claims[key].before for key in keys}


def set_claimed(holder: str, value: str) -> None:
    """Set what a holder has claimed."""
    with mutex(_LOCK):
        for key, claimed in _read().items():
            if holder in claimed.holders:
                sysctl(key, value)
    steps.step("switches.set")


def give_back(holder: str) -> None:
    """What nobody else needs is as it was before. Nothing claimed is fine."""
    with mutex(_LOCK):
        claims = _read()
        left = _without(claims, holder, list(claims))
        steps.step("switches.back")
        if left != claims:
            _write(left)


def _without(claims: Mapping[str, Claim], holder: str, keys: Collection[str]) -> dict[str, Claim]:
    """The claims without those of a holder to these keys, which are set back where they were the last."""
    left = dict(claims)
    for key in keys:
        holders = tuple(one for one in claims[key].holders if one != holder)
        if holders:
            left[key] = Claim(claims[key].before, holders)
            continue
        # A link that is gone took its parameters with it.
        if Path("/proc/sys", key).exists():
            sysctl(key, claims[key].before)
        del left[key]
    return left


def _read() -> dict[str, Claim]:
    try:
        return msgspec.json.decode(REGISTER.read_bytes(), type=dict[str, Claim])
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def _write(claims: Mapping[str, Claim]) -> None:
    if claims:
        files.make_dirs(REGISTER.parent, 0o755)
        files.write_durably(REGISTER, msgspec.json.encode(claims))
        return
    REGISTER.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else has something there
        REGISTER.parent.rmdir()
