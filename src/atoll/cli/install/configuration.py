"""The configuration file of an installed node: written once, changed line by line. Pure, but for `written`.

The file is its owner's: comments, order and other settings stay as they are when one setting is changed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from atoll.errors import Conflict
from atoll.system import processes


def written(values: Mapping[str, Any]) -> str:
    """A new file in which every setting is explained, by the agent's program, which knows them."""
    done = processes.run_blocking(
        (sys.executable, "-m", "atoll.hypervisor.settings", "template"), stdin=msgspec.json.encode(values)
    )
    return done.stdout.decode()


def changed(text: str, path: Path, plain: Mapping[str, str], bridges: Mapping[str, str]) -> str:
    """The text with these settings, texts that stand in no table, and with these bridges besides its own."""
    before = tomllib.loads(text)
    new_bridges = {name: port for name, port in bridges.items() if _bridge(before, name) != port}
    wanted = {**before, **plain}
    if new_bridges:
        wanted["bridges"] = {**before.get("bridges", {}), **new_bridges}
    if wanted == before:
        return text
    after = text
    for key, value in plain.items():
        if before.get(key) != value:
            after = _set(after, key, value)
    if new_bridges:
        after = _add_bridges(after, new_bridges, there_are_some="bridges" in before)
    # Line by line is enough for what we write, and may not be for what somebody made of it.
    if _parsed(after) != wanted:
        differing = ", ".join(sorted(key for key in wanted if wanted[key] != before.get(key)))
        raise Conflict(
            f"changing {differing} in {path}: its lines are not as we wrote them",
            hint=f"edit it yourself, then call atoll node install without those options; "
            f"atoll node check-config {path} checks it",
        )
    return after


def parsed(text: str) -> dict[str, Any]:
    """What a configuration says. It is TOML: who wrote it has looked."""
    return tomllib.loads(text)


def _bridge(settings: Mapping[str, Any], name: str) -> object:
    bridges = settings.get("bridges", {})
    return bridges.get(name) if isinstance(bridges, Mapping) else None


def _set(text: str, key: str, value: str) -> str:
    line = f"{key} = {_toml(value)}"
    replaced, count = re.subn(
        rf"^{re.escape(key)}[ \t]*=.*$", lambda _: line, text, count=1, flags=re.MULTILINE
    )
    return replaced if count else f"{line}\n{text}"


def _add_bridges(text: str, bridges: Mapping[str, str], *, there_are_some: bool) -> str:
    lines = "".join(f"{_toml(name)} = {_toml(port)}\n" for name, port in bridges.items())
    if not there_are_some:
        return f"{text.rstrip()}\n\n[bridges]\n{lines}"
    return re.sub(r"^\[bridges\][ \t]*\n", lambda head: head[0] + lines, text, count=1, flags=re.MULTILINE)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _toml(text: str) -> str:
    return msgspec.json.encode(text).decode()
