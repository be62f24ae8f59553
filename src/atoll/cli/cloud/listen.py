"""Addresses of this host at which a cloud is served to others: `atoll up --listen`. Effects: tries them.

The cloud lives in a network namespace of its own; its agent opens these sockets in the one that it was started in.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

from atoll.api.client import Client
from atoll.api.hypervisor import HEALTH, PORT
from atoll.api.reaching import Address, parse, show
from atoll.errors import AtollError, Conflict, HostFailure, Invalid
from atoll.identity.claims import check_host_name, tidy_names
from atoll.identity.tls import client_context
from atoll.system import listening
from atoll.system.links import Links

MAX_LISTEN = 16
MAX_NAMES = 32
"""Of a host that is served at all of its addresses: a certificate names so many."""
_OWN_LINK = "atl-"


def parsed(texts: Sequence[str]) -> tuple[str, ...]:
    """ADDRESS[:PORT] as people write it, each once, all of them with a port. Pure."""
    if len(texts) > MAX_LISTEN:
        raise Invalid("listen", f"{len(texts)} addresses", f"must be at most {MAX_LISTEN}")
    return tuple(dict.fromkeys(show(_parsed(text)) for text in texts))


def _parsed(text: str) -> Address:
    host, port = parse("listen", text, PORT)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise Invalid(
            "listen", text, "is not an IP address", hint="0.0.0.0 is all addresses of this host"
        ) from None
    if address.version == 6 and address.is_link_local:
        raise Invalid("listen", text, "is good on one link only", hint="choose an address that others reach")
    return str(address), port


def addresses(listen: Sequence[str]) -> tuple[Address, ...]:
    return tuple(parse("listen", text, PORT) for text in listen)


def check_free(listen: Collection[str]) -> None:
    """Said before anything is changed: an address that this host has not, a port that somebody else has."""
    for address in addresses(tuple(listen)):
        try:
            listening.at(*address, 1).close()
        except OSError as error:
            raise _refusal(address, error) from None


def _refusal(address: Address, error: OSError) -> AtollError:
    shown = show(address)
    if error.errno == errno.EADDRINUSE:
        other = show((address[0], address[1] + 1 if address[1] < 65535 else PORT))
        return Conflict(
            f"listening on {shown}: somebody else listens there already",
            hint=f"see who: ss -ltnp; or choose another port, such as --listen {other}",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return Invalid(
            "listen", shown, "is not an address of this host", hint="it has those that this shows: ip address"
        )
    return HostFailure(f"listening on {shown}: {(error.strerror or str(error)).lower()}")


def not_served(listen: Sequence[str], ca: Path) -> list[str]:
    """Those of them at which the cloud of this CA does not answer."""
    return [text for text in listen if not _answers(parse("listen", text, PORT), ca)]


def _answers(address: Address, ca: Path) -> bool:
    ip = ipaddress.ip_address(address[0])
    if ip.is_unspecified:
        if ip.version == 6:
            return True  # its certificate need not name an address of this host that could be asked
        address = ("127.0.0.1", address[1])
    try:
        with Client([address], client_context(ca), timeout_s=5) as client:
            client.call(HEALTH)
    except AtollError:
        return False
    return True


def reached_at(listen: Sequence[str], known_as: Sequence[str] = ()) -> tuple[Address, ...]:
    """Where others find it: names first, then these addresses; for one that stands for all, those of the host now."""
    found = dict.fromkeys((name, port) for _, port in addresses(listen)[:1] for name in known_as)
    for host, port in addresses(listen):
        wanted = ipaddress.ip_address(host)
        others = _of_host(wanted.version) if wanted.is_unspecified else (host,)
        found |= dict.fromkeys((other, port) for other in others)
    return tuple(found)


def names(listen: Sequence[str], known_as: Sequence[str] = ()) -> tuple[str, ...]:
    """What the certificate of the server names for them."""
    return tuple(dict.fromkeys(host for host, _ in reached_at(listen, known_as)))


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names or addresses as a certificate has them. Pure."""
    tidy = tidy_names(tuple(names))
    for name in tidy:
        check_host_name("known-as", name)
    if len(tidy) > MAX_LISTEN:
        raise Invalid("known-as", f"{len(tidy)} names", f"must be at most {MAX_LISTEN}")
    return tidy


def _of_host(version: int) -> tuple[str, ...]:
    """Addresses by which others may reach this host, those on the way to everywhere first."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with Links() as here:
        outward = {route.link for route in here.routes() if route.cidr == "0.0.0.0/0"}
        links = sorted(here.names(), key=lambda link: (link not in outward, link))
        found = [
            ipaddress.ip_interface(text).ip
            for link in links
            if not link.startswith(_OWN_LINK)
            for text in sorted(here.addresses(link, family))
        ]
    usable = [ip for ip in found if not (ip.is_loopback or ip.is_link_local)]
    return tuple(map(str, usable[:MAX_NAMES]))
