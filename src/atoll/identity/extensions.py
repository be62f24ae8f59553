"""The certificate extensions that carry authorisation: groups, granted methods, and the limit. Pure.

Groups and methods give; the limit takes away: what is not in it is denied, whatever the certificate gives besides.
It is marked critical, so that whoever does not know it refuses the certificate instead of ignoring the limit.

All hold a SEQUENCE of strings as Go's `asn1.Marshal([]string)` writes it, which is what Keymaster issues and
SmallStack reads: PrintableString where its alphabet suffices, UTF8String otherwise. Other issuers write other
kinds of string; those whose characters are beyond doubt are read too. A method is `noun.verb`
with exactly one dot; all methods are `*.*` on the wire and `*` in an Identity.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from atoll.errors import Invalid, Malformed
from atoll.identity import der

METHODS_OID = "1.3.6.1.4.1.9586.100.7.1"
GROUPS_OID = "1.3.6.1.4.1.9586.100.7.2"
LIMIT_OID = "2.25.92031530436759412297876411271113325394"
"""Our own, made of a UUID as anybody may (ITU-T X.667). The other two are in SmallStack's arc, which is not ours."""

MAX_BYTES = 1 << 16
MAX_ENTRIES = 1024
MAX_ENTRY_BYTES = 256

ALL_METHODS = "*"
_ALL_METHODS_ON_WIRE = "*.*"
_METHOD = re.compile(r"\*|[A-Za-z0-9_-]{1,64}\.([A-Za-z0-9_-]{1,64}|\*)")
_PRINTABLE = re.compile(r"[A-Za-z0-9 '()+,./:=?-]*")
_CHARSETS = {
    der.UTF8_STRING: "utf-8",
    der.NUMERIC_STRING: "ascii",
    der.PRINTABLE_STRING: "ascii",
    der.IA5_STRING: "ascii",
    der.VISIBLE_STRING: "ascii",
    der.BMP_STRING: "utf-16-be",
}


def check_method(field: str, method: str) -> str:
    """A method that a certificate of ours may permit."""
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise Invalid(field, method, "must be noun.verb, noun.* or *", hint="for example vm.create or vm.*")
    return method


def encode_groups(groups: Iterable[str]) -> bytes:
    return _encode("groups", groups)


def decode_groups(value: bytes) -> frozenset[str]:
    return frozenset(_decode("groups", value))


def encode_methods(methods: Iterable[str]) -> bytes:
    return _encode("methods", (_ALL_METHODS_ON_WIRE if m == ALL_METHODS else m for m in methods))


def decode_methods(value: bytes) -> frozenset[str]:
    return _decode_methods("methods", value)


def check_limit(field: str, limit: Collection[str]) -> None:
    """A limit that a certificate of ours may have: it names something, and leaves something out."""
    if not limit:
        raise Invalid(field, "", "names no method", hint="for example 'vm.list vm.show'")
    for method in limit:
        check_method(field, method)
        if method == ALL_METHODS:
            raise Invalid(field, method, "is no limit", hint="leave it out, or name what is allowed")


def encode_limit(limit: Iterable[str]) -> bytes:
    return _encode("limit", limit)


def decode_limit(value: bytes) -> frozenset[str]:
    """An empty one is one too: nothing is allowed."""
    return _decode_methods("limit", value)


def _decode_methods(what: str, value: bytes) -> frozenset[str]:
    methods = _decode(what, value)
    for method in methods:
        noun, dot, verb = method.partition(".")
        if not (noun and dot and verb) or "." in verb:
            raise Malformed(f"reading the {what} extension: {method[:60]!r} is not noun.verb")
    return frozenset(ALL_METHODS if m == _ALL_METHODS_ON_WIRE else m for m in methods)


def _encode(what: str, entries: Iterable[str]) -> bytes:
    wanted = sorted(set(entries))
    if len(wanted) > MAX_ENTRIES:
        raise Invalid(what, f"{len(wanted)} entries", f"must be at most {MAX_ENTRIES}")
    content = b"".join(_encode_entry(what, entry) for entry in wanted)
    encoded = der.encode(der.SEQUENCE, content)
    if len(encoded) > MAX_BYTES:
        raise Invalid(what, f"{len(encoded)} bytes", f"must be at most {MAX_BYTES}")
    return encoded


def _encode_entry(what: str, entry: str) -> bytes:
    if not entry or not entry.isprintable():
        raise Invalid(what, entry, "must be printable and not empty")
    data = entry.encode()
    if len(data) > MAX_ENTRY_BYTES:
        raise Invalid(what, entry, f"must be at most {MAX_ENTRY_BYTES} bytes")
    return der.encode(der.PRINTABLE_STRING if _PRINTABLE.fullmatch(entry) else der.UTF8_STRING, data)


def _decode(what: str, value: bytes) -> list[str]:
    if len(value) > MAX_BYTES:
        raise Malformed(f"reading the {what} extension: {len(value)} bytes, at most {MAX_BYTES} are taken")
    entries: list[str] = []
    for child in der.children(value, der.whole(value, der.SEQUENCE)):
        if len(entries) == MAX_ENTRIES:
            raise Malformed(f"reading the {what} extension: more than {MAX_ENTRIES} entries")
        entries.append(_decode_entry(what, child.tag, value[child.start : child.end]))
    return entries


def _decode_entry(what: str, tag: int, data: bytes) -> str:
    charset = _CHARSETS.get(tag)
    if charset is None:
        raise Malformed(f"reading the {what} extension: tag {tag:#04x} is not a string")
    if len(data) > MAX_ENTRY_BYTES:
        raise Malformed(f"reading the {what} extension: an entry of {len(data)} bytes")
    try:
        entry = data.decode(charset)
    except UnicodeDecodeError:
        raise Malformed(f"reading the {what} extension: an entry that is not {charset}") from None
    if not entry or not entry.isprintable():
        raise Malformed(f"reading the {what} extension: an entry that is empty or not printable")
    return entry
