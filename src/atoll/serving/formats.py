"""What services keep on disk, across versions: older ones read what newer ones wrote, and lose nothing of it.

Pure. A file says which format it was written in and which the oldest program must know that may read it. A program
leaves a file alone that needs a newer one. Fields that it does not know (a newer program's) it keeps: they are written
back with every change, so that a service can be put back to the version before and forth again.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from atoll.errors import HostFailure

T = TypeVar("T", bound=Struct)

Unknown = dict[str, Any]
"""Fields of a file that this program does not know, those inside of its fields included."""

_FORMAT, _NEEDS = "format", "needs_format"


class Format(Struct, Generic[T], frozen=True):
    """How values of one kind are kept. `number` grows with every field that is added; `needs` is the oldest number
    whose programs can do with what is written now: it grows only when they cannot."""

    kind: type[T]
    number: int
    needs: int

    def decode(self, data: bytes) -> tuple[T, Unknown]:
        """The value, and what else is there. HostFailure: a newer program is needed; MsgspecError: it is none."""
        found = msgspec.json.decode(data, type=dict[str, Any])
        needs = msgspec.convert(found.get(_NEEDS, 0), int)
        if needs > self.number:
            raise HostFailure(
                f"it needs an agent that knows format {needs}, and this one knows {self.number}",
                hint="install the version that wrote it, or a later one",
            )
        unknown = _unknown(found, self.kind)
        if needs > self.needs:
            unknown[_NEEDS] = needs
        return msgspec.convert(found, self.kind), unknown

    def encode(self, value: T, unknown: Unknown) -> bytes:
        """The bytes to keep. What a newer program asked of its readers still counts while its fields are there."""
        needs = unknown.get(_NEEDS, self.needs)
        content = {_FORMAT: self.number, _NEEDS: needs, **msgspec.to_builtins(value)}
        return msgspec.json.encode(_merge(content, unknown))


def needed(data: bytes) -> int:
    """The oldest number whose programs may read this file."""
    return msgspec.json.decode(data, type=_Needs).needs_format


class _Needs(Struct):
    needs_format: int = 0


def needing(unknown: Unknown, number: int) -> Unknown:
    """The same, of a file that only programs of this format on may read."""
    return {**unknown, _NEEDS: max(number, unknown.get(_NEEDS, 0))}


def _unknown(found: dict[str, Any], kind: type[Struct]) -> Unknown:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    left: Unknown = {name: found[name] for name in found.keys() - fields.keys() - {_FORMAT, _NEEDS}}
    for name, type_ in fields.items():
        value, one, many = found.get(name), _struct_in(type_), _struct_in_tuple(type_)
        more: Any = None
        if one is not None and isinstance(value, dict):
            more = _unknown(value, one)
        elif many is not None and isinstance(value, list):
            each = {_key(item): _unknown(item, many) for item in value if isinstance(item, dict)}
            more = {key: unknown for key, unknown in each.items() if key and unknown}
        if more:
            left[name] = more
    return left


def _struct_in(type_: Any) -> type[Struct] | None:
    """The struct that a field holds, if it holds one, or may hold none."""
    choices = get_args(type_) if isinstance(type_, UnionType) else (type_,)
    structs = [one for one in choices if isinstance(one, type) and issubclass(one, Struct)]
    others = [one for one in choices if one not in structs and one is not type(None)]
    return structs[0] if len(structs) == 1 and not others else None


def _struct_in_tuple(type_: Any) -> type[Struct] | None:
    """The struct that a field holds any number of."""
    arguments = get_args(type_)
    return _struct_in(arguments[0]) if get_origin(type_) is tuple and arguments[1:] == (...,) else None


def _key(item: dict[str, Any]) -> str:
    """What an item of several is known by, also when all else of it has changed."""
    return next((str(item[name]) for name in ("id", "name", "ip") if name in item), "")


def _merge(content: dict[str, Any], unknown: Unknown) -> dict[str, Any]:
    for name, value in unknown.items():
        known = content.get(name)
        if name not in content:
            content[name] = value
        elif isinstance(known, dict):
            _merge(known, value)
        elif isinstance(known, list | tuple):
            for item in known:
                _merge(item, value.get(_key(item), {}))
    return content
