"""Ports as they are written on the command line: one here, and the port of a guest that it leads to. Pure."""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from atoll.errors import Invalid

_LAST = 65535


class Mapping(Struct, frozen=True):
    """A port here, and the port of the guest that it leads to. 0: one that is free."""

    host: str
    here: int
    guest: int


def parse_mapping(text: str, default_host: str) -> Mapping:
    """[[ADDRESS:]HERE:]PORT, as it is written behind a VM's name; HERE is PORT where there is none."""
    where, colon, guest = _tcp(text).rpartition(":")
    host, _, here = where.rpartition(":")
    try:
        to = _port(guest, 1)
        return Mapping(_host(host) or default_host, _port(here, 0) if colon else to, to)
    except ValueError:
        raise Invalid(
            "port", text, "is not [[ADDRESS:]HERE:]PORT", hint="for example 8080:80, or 127.0.0.2:8080:80"
        ) from None


def parse_place(text: str) -> tuple[str, int]:
    """[ADDRESS:]PORT; the address is empty where there is none."""
    host, _, port = _tcp(text).rpartition(":")
    try:
        return _host(host), _port(port, 1)
    except ValueError:
        raise Invalid("port", text, "is not [ADDRESS:]PORT", hint="for example 8080") from None


def _tcp(text: str) -> str:
    ports, slash, protocol = text.partition("/")
    if slash and protocol.lower() != "tcp":
        raise Invalid("port", text, "only TCP is carried", hint=f"write {ports}, or {ports}/tcp")
    return ports


def _host(text: str) -> str:
    host = text.removeprefix("[").removesuffix("]")
    if host == "localhost":
        host = "127.0.0.1"
    return str(ipaddress.ip_address(host)) if host else ""


def _port(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= _LAST:
        raise ValueError(text)
    return int(text)
