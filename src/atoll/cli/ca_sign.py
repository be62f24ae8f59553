"""`atoll ca sign`: a certificate for a key that somebody made elsewhere. Effects: the CA's directory, a file.

Of a request, the key is taken and nothing else: who it is for, and what they may do, is for whoever signs to say.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path

from atoll.api.joining import MAX_REQUEST
from atoll.cli.arguments import Commands, add_verb, parse_duration_s
from atoll.cli.output import notice, write
from atoll.cli.rights import add_ca_dir, add_rights, ca_dir, claims_of_user, handed_out
from atoll.errors import HostFailure
from atoll.identity import requests
from atoll.identity.authority import Authority
from atoll.system import files

LIFETIME = "30d"
"""Of a certificate for another machine, where nobody can renew it by themselves."""


def register(ca: Commands) -> None:
    verb = add_verb(
        ca,
        "sign",
        run,
        summary="Sign a certificate request of a user; print the certificate, or write it to a file.",
        example="atoll ca sign request.pem --user alice --group web --out alice.pem",
    )
    verb.add_argument("file", metavar="FILE", help="the request, in PEM; -: standard input")
    verb.add_argument("--user", required=True, metavar="USER", help="who it is for")
    add_rights(verb)
    verb.add_argument("--lifetime", default=LIFETIME, metavar="TIME", help=f"default {LIFETIME}")
    verb.add_argument("--out", metavar="FILE", help="default: standard output")
    add_ca_dir(verb)


def run(options: argparse.Namespace) -> None:
    claims = claims_of_user(options)
    lifetime = timedelta(seconds=parse_duration_s("lifetime", options.lifetime))
    key = requests.public_key(_request(options.file))
    signed = Authority.open(ca_dir(options)).certify(claims, key, lifetime)
    if options.out is None:
        write(signed.cert_pem.decode())
    else:
        files.write_durably(Path(options.out), signed.cert_pem, mode=0o644)
        notice(f"wrote {options.out}, good until {signed.not_after:%Y-%m-%d %H:%MZ}", options)
    for said in handed_out(claims):
        notice(said, options)


def _request(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(MAX_REQUEST + 1)
    try:
        return files.read_limited(Path(name), MAX_REQUEST)
    except OSError as error:
        raise HostFailure(f"reading {name}: {(error.strerror or str(error)).lower()}") from None
