"""What happened to the VMs of a node, with what changed: entries that are kept. Pure.

They are shown to everybody who may see VMs, so what is its owners' alone is named and not told.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins

from atoll.model.event import EventKind
from atoll.model.publishing import shown_at
from atoll.model.vm import VM

MAX_VALUE = 200
"""Of an old or a new value; more of it is cut."""

_NOT_NEWS = frozenset({"ready", "running", "previous_user_data_sha256", "role_credential_expires_at"})
"""What changes with something else that is told, or says how far a start has come."""
_NOT_TOLD = frozenset(
    {"user_data_sha256", "ssh_keys", "kernel_options", "request_id", "role_problem", "role_cloud"}
)
"""Its owners' alone: that it changed is told, not how."""


class FieldChange(Struct, frozen=True, omit_defaults=True):
    field: str
    old: str = ""
    new: str = ""


class HistoryEntry(Struct, frozen=True, omit_defaults=True):
    """One VM that came, changed or went."""

    at: datetime
    kind: EventKind
    ip: str
    name: str
    state: str
    reason: str = ""
    """Why it is in this state, or why it went, where that is known."""
    changes: tuple[FieldChange, ...] = ()
    """Of one that changed: each field with what it was and what it is."""


def entry_of(kind: EventKind, before: VM | None, vm: VM, at: datetime) -> HistoryEntry | None:
    """What is kept of it; None: nothing that anybody would look for."""
    changes = changes_of(before, vm) if kind is EventKind.CHANGED and before is not None else ()
    if kind is EventKind.CHANGED and not changes:
        return None
    return HistoryEntry(at, kind, vm.ip, vm.name, str(vm.state), vm.reason[:MAX_VALUE], changes)


def changes_of(before: VM, after: VM) -> tuple[FieldChange, ...]:
    """Each field that is another now."""
    found = []
    for field in VM.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if old == new or field in _NOT_NEWS:
            continue
        is_told = field not in _NOT_TOLD
        found.append(FieldChange(field, _text(old), _text(new)) if is_told else FieldChange(field))
    return tuple(found)


def _text(value: Any) -> str:
    plain = to_builtins(value)
    if plain is None or (isinstance(plain, str | list | tuple | dict) and not plain):
        return "-"
    match plain:
        case dict():
            text = ", ".join(f"{key}={one}" for key, one in plain.items())
        case list() | tuple():
            text = ", ".join(_part(one) for one in plain)
        case bool():
            text = "yes" if plain else "no"
        case _:
            text = str(plain)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def _part(value: Any) -> str:
    """An item of a list: of what has a name, such as a volume, that and its size; of a port, where it leads."""
    if isinstance(value, dict) and "guest_port" in value:
        return f"{shown_at(value['address'], value['port'])} -> {value['guest_port']}"
    if isinstance(value, dict) and "read_only" in value:
        return f"{value['name']} at {value['path']}{', read-only' if value['read_only'] else ''}"
    if isinstance(value, dict):
        size = f" {value['size_mib']} MiB" if value.get("size_mib") else ""
        detached = "" if value.get("attached", True) else " (detached)"
        return f"{value.get('name') or value.get('ip', '?')}{size}{detached}"
    return str(value)
