"""Settings of the agent that are the user's: read, put over what we generate, checked. Effects: asks its program.

`settings.toml` in the directory of a cloud is never written by us, so that what was set there stays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from atoll.errors import HostFailure, Invalid, Malformed
from atoll.system import processes

OURS = frozenset(
    {
        *("ip", "state", "images", "pki", "cgroup"),
        *("namespace", "service_prefix", "listen", "listen_outside", "port", "uplink"),
    }
)
"""What a cloud of one node consists of: were it changed, the cloud would not be found again."""


class Problem(Struct, frozen=True):
    """One thing that is wrong with a configuration, as the agent's program tells it."""

    key: str
    why: str
    hint: str = ""


def read(path: Path) -> dict[str, Any]:
    """What stands in a file of settings. No file is no settings."""
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostFailure(f"reading {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = str(error)
        raise Malformed(
            f"{path}: {why[:1].lower()}{why[1:]}", hint="it is TOML: a line such as hot_pool = 2"
        ) from None


def merged(generated: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A setting, or a table of them, that the user has replaces ours. Pure."""
    for key in own:
        if key in OURS:
            raise Invalid(
                f"{path}: {key}", own[key], "is chosen by atoll up", hint="remove it from that file"
            )
    return {**generated, **own}


def check(text: bytes, path: Path) -> None:
    """Refuse a configuration, as JSON, of which the part in `path` makes no sense."""
    if found := problems(Path("/dev/stdin"), text):
        first = found[0]
        more = f" (and {len(found) - 1} more: {', '.join(one.key for one in found[1:])})" if found[1:] else ""
        raise Malformed(f"{path}: {first.key}: {first.why}{more}", hint=first.hint)


def problems(path: Path, text: bytes = b"") -> list[Problem]:
    """All that is wrong with a configuration, by the program that would use it."""
    done = processes.run_blocking(
        (sys.executable, "-m", "atoll.hypervisor", "--check", str(path)), stdin=text
    )
    return msgspec.json.decode(done.stdout, type=list[Problem])
