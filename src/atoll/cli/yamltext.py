"""Plain values as YAML, in block style. Pure.

Only what cannot be taken for anything else stands without quotes; the rest is double-quoted, which every
reader of YAML 1.1 and 1.2 understands alike.
"""

from __future__ import annotations

import math
import re
from typing import Any

from atoll.cli.terminal import escaped

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_/.-]*")
_MEANS_SOMETHING = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


def to_yaml(value: Any) -> str:
    """One document: dictionaries, lists, strings, numbers, booleans and None."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(_string(str(key)), item)]
    if isinstance(value, list | tuple) and value:
        return [line for item in value for line in _item(item)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    lines = _lines(value)
    if _is_nested(value):
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}: {lines[0]}"]


def _item(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _number(value)
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
    return _string(str(value))


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    # YAML 1.1 takes 1e-07 for a string: it wants a point, and a sign in the exponent.
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}" if e else mantissa


def _string(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _MEANS_SOMETHING:
        return text
    return '"' + "".join(_quoted(char) for char in text) + '"'


def _quoted(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else escaped(char)
