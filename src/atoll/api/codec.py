"""Bytes of the wire to checked values and back. Pure."""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from atoll.api.route import NOTHING, Done, Problem, Route, Stream
from atoll.errors import AtollError, Malformed, Unreachable, from_wire

encode = msgspec.json.Encoder().encode
_problem = msgspec.json.Decoder(Problem)

SECRET = msgspec.Meta(extra={"secret": True})
"""Marks a field of a request: whatever stands in it, no error shows it."""

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, made once."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def decode_body(kind: Any, data: bytes) -> Any:
    """The request body, or Malformed naming the field and the value that is wrong."""
    if kind is NOTHING:
        if data.strip():
            raise Malformed("request body: this route takes none", details={"bytes": len(data)})
        return None
    try:
        return _decode(kind, data or b"{}")
    except msgspec.ValidationError as error:
        raise _explain(str(error), _safe_json(data), _secrets_of(kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(
            f"request body: not JSON: {error}",
            hint="send one whole JSON object",
            details={"bytes": len(data)},
        ) from None


def _decode(kind: Any, data: bytes) -> Any:
    try:
        return decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        # To JSON Schema, which our description is written in, 128.0 is an integer.
        return decoder(kind).decode(encode(_whole(msgspec.json.decode(data))))


def _whole(value: Any) -> Any:
    match value:
        case dict():
            return {key: _whole(inner) for key, inner in value.items()}
        case list():
            return [_whole(inner) for inner in value]
        case float() if value.is_integer():
            return int(value)
    return value


def decode_query(kind: Any, query: Mapping[str, str]) -> Any:
    if kind is NOTHING:
        if query:
            raise Malformed(f"query {sorted(query)[0]!r}: this route takes no parameters")
        return None
    counts = Counter(name for name, _ in query.items())
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise Malformed(f"query {twice!r}: given more than once", hint="give each parameter once")
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(str(error), dict(query)) from None


def _safe_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")
_FIELD = re.compile(r"object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)


def _secrets_of(kind: Any) -> frozenset[str]:
    """The fields of a request that are marked as secret."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if SECRET in getattr(hint, "__metadata__", ()))


def _explain(message: str, value: Any, secrets: frozenset[str] = frozenset()) -> Malformed:
    """msgspec says where; the reader also wants to see what stood there, unless that is a secret."""
    why, _, path = (message[:1].lower() + message[1:]).partition(" - at `")
    steps = [name or index for name, index in _STEP.findall(path)]
    if named := _FIELD.fullmatch(why):
        steps.append(named.group(1))
        why = "is missing" if why.startswith("object missing") else "there is no such field"
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            value = None
            break
    field = ".".join(step if step.isprintable() else repr(step) for step in steps)[:80] or "request body"
    shown = "" if steps and steps[0] in secrets else _show(value)
    return Malformed(
        f"{field} {shown}: {why}" if shown else f"{field}: {why}",
        hint="the reference of the API says what each field takes: docs/reference/api.md",
        details={"field": field, "value": shown},
    )


def _show(value: Any) -> str:
    """Short, and nothing of what is nested in it: that is not what is wrong, and may be secret."""
    if value is None or isinstance(value, dict | list):
        return ""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"of {len(shown)} characters"


def problem_of(error: AtollError) -> Problem:
    return Problem(error.code, error.brief, error.hint, error.details)


def error_of(data: bytes, status: int) -> AtollError:
    """The error in a reply, whoever wrote it."""
    try:
        problem = _problem.decode(data)
    except msgspec.MsgspecError:
        text = data[:200].decode("utf-8", "replace").strip()
        return AtollError(f"the server answered with status {status}: {text or 'no text'}")
    return from_wire(problem.code, problem.brief, problem.hint, problem.details)


def request_of(
    route: Route[Any, Any], params: Mapping[str, str], body: Any, query: Any
) -> tuple[str, str, bytes, dict[str, str]]:
    """Verb, target, body and headers of a request, the same for every client."""
    target = route.url(params)
    if query is not None:
        given = msgspec.to_builtins(query)
        target += "?" + urlencode({key: _plain(value) for key, value in given.items() if value is not None})
    if body is None:
        return route.verb, target, b"", {}
    return route.verb, target, encode(body), {"Content-Type": "application/json"}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Line(msgspec.Struct, frozen=True):
    """One line of a stream, its payload not yet decoded: exactly one of the three is there."""

    item: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: Problem | None = None


_line = msgspec.json.Decoder(Line)


def decode_line(route: Stream[Any, Any, Any, Any], data: bytes) -> Any:
    """An item or the result of a stream; raises the error that the peer sent."""
    line = _line.decode(data)
    if line.error is not None:
        raise from_wire(line.error.code, line.error.brief, line.error.hint, line.error.details)
    if bytes(line.item):
        return decoder(route.item).decode(line.item)
    return Done(decoder(route.result).decode(line.result))


def broke_off(where: str) -> AtollError:
    """A stream came to its end without a result or an error: what became of the request is not known."""
    return Unreachable(
        f"{where}: the stream broke off before its result",
        hint="the service may have been restarted; look again",
    )
