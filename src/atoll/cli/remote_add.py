"""`atoll remote add`: a cloud elsewhere, by a token or by hand. Effects: asks that cloud, asks the user, writes files.

The key is made here and never leaves. By hand, it takes two steps: the first trusts the CA and writes a request, which
somebody has signed; the second brings the certificate.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from atoll.api.reaching import show
from atoll.cli import remotes
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.output import notice
from atoll.cli.remotes import Making, Remote
from atoll.errors import AtollError, Conflict, HostFailure, Malformed
from atoll.identity import fingerprints, tokens
from atoll.model.checks import check_principal
from atoll.system import files

MAX_CERTIFICATE = 1 << 20


def register(remote: Commands) -> None:
    verb = add_verb(
        remote,
        "add",
        run,
        summary="Add a cloud elsewhere: by a token of atoll remote invite, or by its addresses and a request.",
        example="atoll remote add prod < token && atoll vm list --remote prod",
    )
    verb.add_argument("name", metavar="NAME", help="what to call it here")
    verb.add_argument(
        "where",
        nargs="*",
        metavar="ADDRESS",
        help="HOST[:PORT]…; none, or -: a token is asked for, or read from standard input",
    )
    verb.add_argument("--fingerprint", metavar="SHA256:…", help="of its CA, instead of a question")
    verb.add_argument("--user", metavar="USER", help="who to ask a certificate for; default: your name here")
    verb.add_argument(
        "--certificate", metavar="FILE", help="what came of the request: the second step by hand"
    )
    verb.add_argument("--replace", action="store_true", help="in the place of one that is there")


def run(options: argparse.Namespace) -> None:
    remotes.check_remote_name(options.name)
    if options.certificate is not None:
        if options.where:
            raise Malformed(
                "remote add: --certificate goes with a name alone", hint="see: atoll remote add -h"
            )
        finish(options)
    elif any(map(tokens.looks_like_one, options.where)):
        raise Malformed(
            f"remote add {options.name}: a token in a command line can be read by every user of this machine",
            hint=f"leave it out, and you are asked for it; or: atoll remote add {options.name} < FILE",
        )
    elif options.where in ([], ["-"]):
        by_token(options)
    else:
        by_hand(options)


def by_token(options: argparse.Namespace) -> None:
    from atoll.cli import enrolling

    token = tokens.read(_told_token(options.name))
    if options.fingerprint and fingerprints.parse(options.fingerprint) != token.fingerprint:
        raise Conflict(
            f"remote add {options.name}: the token is for a CA with another fingerprint,"
            f" {fingerprints.show(token.fingerprint)}",
            hint="ask who gave it to you",
        )
    with Making(options.name, replace=options.replace) as made:
        ca = enrolling.find_ca(enrolling.addresses_of(token.addresses), token.fingerprint)
        ca_path = made.write("ca.pem", ca.pem)
        key, request = enrolling.make_request(options.name)
        made.write("user.key", key)
        joined = enrolling.redeem(token, ca, ca_path, request)
        certificate = joined.certificate.encode()
        enrolling.check_certificate(certificate, key, ca.pem)
        made.write("user.pem", certificate)
        made.finish(Remote(tuple(map(show, ca.addresses))))
    _tell_added(options, certificate)


def _told_token(name: str) -> str:
    """What is typed on a terminal, unseen; elsewhere what comes on standard input."""
    from atoll.cli.raw_terminal import ask_unseen

    if sys.stdin.isatty():
        told = ask_unseen(sys.stdin.fileno(), "token of atoll remote invite, which is not shown: ")
    else:
        told = sys.stdin.read(tokens.MAX_TOKEN * 2)
    if not told.strip():
        raise Malformed(
            f"remote add {name}: neither a token nor an address is given",
            hint="ask for a token: atoll remote invite USER, on the machine of the cloud",
        )
    return told


def by_hand(options: argparse.Namespace) -> None:
    from atoll.cli import enrolling

    user = check_principal("user", options.user or getpass.getuser())
    wanted = fingerprints.parse(options.fingerprint) if options.fingerprint else None
    if wanted is None and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Malformed(
            f"remote add {options.name}: there is no terminal to ask at whether its CA is the right one",
            hint="say --fingerprint SHA256:…, which atoll ca show has on the machine of the cloud; or use a token",
        )
    with Making(options.name, replace=options.replace) as made:
        ca = enrolling.find_ca(enrolling.addresses_of(options.where), wanted)
        enrolling.check_proves_itself(ca, made.write("ca.pem", ca.pem))
        if wanted is None:
            _ask(show(ca.addresses[0]), ca.fingerprint)
        key, request = enrolling.make_request(user)
        made.write("user.key", key)
        made.write("request.pem", request)
        found = made.finish(Remote(tuple(map(show, ca.addresses)), user))
    for line in next_steps(found.request, options.name, user):
        notice(line, options)


def next_steps(request: Path, name: str, user: str) -> list[str]:
    """What is left to do, for two people on two machines."""
    return [
        f"wrote {request}",
        "have it signed on the machine of that cloud:",
        f"  atoll ca sign request.pem --user {user} --out {user}.pem",
        "then bring the certificate here:",
        f"  atoll remote add {name} --certificate {user}.pem",
    ]


def _ask(where: str, fingerprint: bytes) -> None:
    sys.stderr.write(
        f"the CA at {where} has the fingerprint\n  {fingerprints.show(fingerprint)}\n"
        "compare it with sha256 of atoll ca show, on the machine of that cloud\ntrust it? [y/N] "
    )
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise AtollError("not confirmed: nothing was done")


def finish(options: argparse.Namespace) -> None:
    from atoll.cli import enrolling

    found = remotes.load(options.name)
    try:
        path = Path(options.certificate)
        certificate = (
            sys.stdin.buffer.read(MAX_CERTIFICATE)
            if options.certificate == "-"
            else files.read_limited(path, MAX_CERTIFICATE)
        )
        key, ca = found.key.read_bytes(), found.ca.read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise HostFailure(f"reading {error.filename or options.certificate}: {why}") from None
    enrolling.check_certificate(certificate, key, ca)
    files.write_durably(found.cert, certificate)
    found.request.unlink(missing_ok=True)
    _tell_added(options, certificate)


def _tell_added(options: argparse.Namespace, certificate: bytes) -> None:
    from atoll.identity.inspection import describe

    held = describe(certificate)[0]
    notice(
        f"remote {options.name}: you are {held.subject} there until {held.not_after:%Y-%m-%d %H:%MZ};"
        f" use it with --remote {options.name}, or: atoll remote use {options.name}",
        options,
    )
