"""What a certificate is to say of what its holder may do: options of several commands, and words for people. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path

from atoll.api.access import Access
from atoll.api.hypervisor import ROUTES
from atoll.cli.arguments import Parser
from atoll.cli.context import cloud_dir
from atoll.cli.words import unknown
from atoll.identity.claims import Claims, Kind, user_claims
from atoll.identity.extensions import check_limit

_OF_VMS = ("vm", "volume")
"""Nouns of methods whose object is a VM and what it has."""


def add_rights(verb: Parser) -> None:
    verb.add_argument("--group", action="append", default=[], metavar="GROUP", help="may be repeated")
    verb.add_argument(
        "--grant",
        action="append",
        default=[],
        metavar="PATTERN…",
        help="hand out these methods on EVERYONE's VMs and on the node, such as 'vm.log vm.stop', 'vm.*' or '*';"
        " what users own, they may use without it",
    )
    verb.add_argument(
        "--limit",
        action="append",
        metavar="PATTERN…",
        help="be good for these methods and nothing else, such as 'vm.list vm.show';"
        " whatever the user owns, operates or is granted",
    )


def add_ca_dir(verb: Parser) -> None:
    verb.add_argument("--ca-dir", metavar="DIR", help="the CA's directory; default: pki in that of the cloud")


def ca_dir(options: argparse.Namespace) -> Path:
    return Path(options.ca_dir) if options.ca_dir else cloud_dir(options) / "pki"


def claims_of_user(options: argparse.Namespace) -> Claims:
    """What the options of `add_rights` say of `options.user`."""
    return user_claims(options.user, tuple(options.group), patterns(options.grant), limit_of(options.limit))


def patterns(words: Sequence[str]) -> tuple[str, ...]:
    """Methods that may stand in one word or in several: 'vm.list vm.show'."""
    return tuple(pattern for word in words for pattern in word.replace(",", " ").split())


def limit_of(words: Sequence[str] | None) -> tuple[str, ...] | None:
    """The limit that was asked for; None: none was. One that no method would pass is refused."""
    if words is None:
        return None
    limit, known = patterns(words), [route.name for route in ROUTES if route.access is not Access.PUBLIC]
    check_limit("limit", limit)
    nouns = {f"{name.partition('.')[0]}.*" for name in known}
    for pattern in limit:
        if pattern not in nouns and pattern not in known:
            raise unknown("limit", pattern, [*known, *sorted(nouns)])
    return limit


def handed_out(claims: Claims) -> list[str]:
    """What the holder of a certificate may do because of it, in plain words."""
    said = [f"{claims.subject} {may}" for may in (granted(claims.methods), limited(claims.limit)) if may]
    if claims.kind is Kind.USER and not said:
        said = [f"{claims.subject} may see all VMs, create VMs, and change those that {claims.subject} owns"]
    return said


def granted(methods: Collection[str]) -> str:
    if "*" in methods:
        return "may call everything, on everyone's VMs and on the node itself"
    of_vms = sorted(method for method in methods if method.partition(".")[0] in _OF_VMS)
    others = sorted(set(methods) - set(of_vms))
    return "; ".join(
        f"may call {', '.join(some)} {where}"
        for some, where in ((of_vms, "on everyone's VMs"), (others, "as an operator"))
        if some
    )


def limited(limit: Collection[str] | None) -> str:
    if limit is None:
        return ""
    return f"may call {', '.join(sorted(limit))} and nothing else" if limit else "may call nothing at all"
