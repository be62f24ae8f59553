"""What a certificate is to say of its holder: kind, subject, names, groups, methods, limit. Pure."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum

from msgspec import Struct

from atoll.errors import Invalid
from atoll.identity.extensions import MAX_ENTRIES, check_limit, check_method
from atoll.model.checks import check_principal

MAX_COMMON_NAME = 64
MAX_NAMES = 64
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_CA_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9])?")


class Kind(StrEnum):
    CA = "ca"
    SERVER = "server"
    """Proves an address or a name to clients; opens nothing."""
    USER = "user"
    """Proves who calls."""
    SERVICE = "service"
    """Both: a program that serves and calls."""


class Claims(Struct, frozen=True):
    """What a leaf certificate is to state. Names are DNS names and IP addresses, in lower case."""

    kind: Kind
    subject: str
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    """Granted over everything, whoever owns it."""
    limit: tuple[str, ...] | None = None
    """The only methods that it is good for; None: no limit."""

    def __post_init__(self) -> None:
        check_common_name("subject", self.subject)
        for name in self.names:
            check_host_name("name", name)
        if len(self.names) > MAX_NAMES:
            raise Invalid("names", f"{len(self.names)} names", f"must be at most {MAX_NAMES}")
        for group in self.groups:
            check_principal("group", group)
        for method in self.methods:
            check_method("method", method)
        if max(len(self.groups), len(self.methods)) > MAX_ENTRIES:
            raise Invalid("groups and methods", "too many", f"must be at most {MAX_ENTRIES} of each")
        if self.limit is not None:
            check_limit("limit", self.limit)
        _check_fits_kind(self)


def user_claims(
    user: str,
    groups: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    limit: tuple[str, ...] | None = None,
) -> Claims:
    check_principal("user", user)
    return Claims(
        Kind.USER,
        user,
        groups=_tidy(groups),
        methods=_tidy(methods),
        limit=None if limit is None else _tidy(limit),
    )


def server_claims(names: tuple[str, ...]) -> Claims:
    tidy = tidy_names(names)
    subject = next((name for name in tidy if len(name) <= MAX_COMMON_NAME), "server")
    return Claims(Kind.SERVER, subject, names=tidy)


def service_claims(
    service: str,
    names: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
) -> Claims:
    check_principal("service", service)
    return Claims(Kind.SERVICE, service, tidy_names(names), _tidy(groups), _tidy(methods))


def tidy_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """In lower case and the usual notation, each once, in the order given."""
    return tuple(dict.fromkeys(_tidy_name(name) for name in names))


def as_ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def check_common_name(field: str, value: str) -> str:
    if not value or len(value) > MAX_COMMON_NAME or not value.isascii() or not value.isprintable():
        raise Invalid(field, value, f"must be 1 to {MAX_COMMON_NAME} printable characters")
    return value


def check_ca_name(field: str, value: str) -> str:
    if not isinstance(value, str) or not _CA_NAME.fullmatch(value):
        raise Invalid(field, value, f"must be 1 to {MAX_COMMON_NAME} letters, digits, blanks and . _ -")
    return value


def check_host_name(field: str, value: str) -> str:
    if as_ip(value) is None and (len(value) > 253 or not _DNS_NAME.fullmatch(value)):
        raise Invalid(
            field, value, "must be a DNS name or an IP address", hint="for example node1 or 10.1.2.3"
        )
    return value


def _tidy(entries: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(entries)))


def _tidy_name(name: str) -> str:
    address = as_ip(name)
    return str(address) if address else name.lower().removesuffix(".")


def _check_fits_kind(claims: Claims) -> None:
    if claims.kind is Kind.CA:
        raise Invalid("kind", str(claims.kind), "is not a leaf certificate's")
    if claims.kind is Kind.SERVER and not claims.names:
        raise Invalid("names", "()", "must hold at least one DNS name or IP address of the server")
    if claims.kind is Kind.SERVER and (claims.groups or claims.methods):
        raise Invalid(
            "kind", str(claims.kind), "has no groups and methods", hint="issue a service certificate"
        )
    if claims.kind is not Kind.USER and claims.limit is not None:
        # The limit is critical: clients, which do not know it, would refuse the server that shows it.
        raise Invalid("kind", str(claims.kind), "cannot have a limit", hint="issue a user certificate")
    if claims.kind is Kind.USER and claims.names:
        raise Invalid("names", claims.names, "are a server's", hint="issue a service certificate")
