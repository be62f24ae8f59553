"""Where the command keeps what it may lose: hints that spare the user time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_dir(environment: Mapping[str, str]) -> Path | None:
    """None where the user has no home."""
    cache, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    if cache:
        return Path(cache) / "atoll"
    return Path(home) / ".cache" / "atoll" if home else None
