"""`atoll ca`: the small CA of a cloud. Effects: reads and writes the CA's directory and what is issued.

Works on the files of this machine, so that certificates can be had while no service runs.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from atoll.cli import ca_sign
from atoll.cli.arguments import Commands, add_noun, add_verb, parse_duration_s
from atoll.cli.context import own_files
from atoll.cli.output import (
    Column,
    View,
    add_list_options,
    add_show_options,
    joined,
    notice,
    render_list,
    render_one,
    style_of,
    write,
)
from atoll.cli.rights import add_ca_dir, add_rights, ca_dir, granted, handed_out, limit_of, limited, patterns
from atoll.errors import Denied, HostFailure, Invalid, Malformed, NotFound
from atoll.identity import certificates, store
from atoll.identity.authority import Authority, Certified, Issued
from atoll.identity.claims import Claims, Kind, server_claims, service_claims, user_claims
from atoll.identity.index import IssuedRecord
from atoll.identity.inspection import Description, describe
from atoll.system import clock, files

MAX_CERTIFICATES = 1 << 20
_LIFETIMES = {
    Kind.USER: certificates.USER_LIFETIME,
    Kind.SERVER: certificates.SERVER_LIFETIME,
    Kind.SERVICE: certificates.SERVICE_LIFETIME,
}
_GREEN, _RED, _DIM = "32", "31", "2"


def register(commands: Commands) -> None:
    ca = add_noun(
        commands, "ca", "The small CA of a cloud, for those who have none: certificates and their end."
    )
    verb = add_verb(ca, "init", init, summary="Make a CA.", example="atoll ca init --name 'Example Cloud CA'")
    verb.add_argument("--name", default="Atoll CA", help="its common name; default 'Atoll CA'")
    verb.add_argument("--lifetime", default="3650d", metavar="TIME", help="default 3650d")
    add_ca_dir(verb)
    add_show_options(verb)
    verb = add_verb(
        ca,
        "issue",
        issue,
        summary="Issue a certificate: NAME.pem, NAME.key and ca.pem in a directory.",
        example="atoll ca issue user alice --group web --lifetime 24h --out ~/.atoll",
    )
    verb.add_argument("kind", choices=[str(kind) for kind in _LIFETIMES], metavar="user|server|service")
    verb.add_argument("name", metavar="NAME")
    add_rights(verb)
    verb.add_argument("--method", action=_OldWord, help=argparse.SUPPRESS)
    verb.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="NAME|IP",
        help="of a server or service, besides NAME",
    )
    verb.add_argument("--lifetime", metavar="TIME", help="default 24h for users, 30d for others")
    verb.add_argument("--out", default=".", metavar="DIR", help="default: here")
    add_ca_dir(verb)
    add_show_options(verb)
    ca_sign.register(ca)
    verb = add_verb(
        ca,
        "renew",
        renew,
        summary="Renew a certificate of this CA: the same rights and limits, as long from now, with a new key.",
        example="atoll ca renew alice --out ~/.atoll",
    )
    verb.add_argument(
        "file",
        nargs="?",
        metavar="NAME|FILE",
        help="the certificate; it is replaced, and its key with it if that is there; default: the one in use",
    )
    verb.add_argument(
        "--out", default=".", metavar="DIR", help="where NAME.pem and NAME.key are; default: here"
    )
    verb.add_argument(
        "--keep-key", action="store_true", help="for the same key, as where the key is on another machine"
    )
    add_ca_dir(verb)
    add_show_options(verb)
    verb = add_verb(
        ca,
        "show",
        show,
        summary="Show the certificates in a file; without one, the CA's own.",
        example="atoll ca show /var/lib/atoll/client/user.pem",
    )
    verb.add_argument("file", nargs="?", metavar="FILE")
    add_ca_dir(verb)
    add_show_options(verb)
    verb = add_verb(
        ca, "list", list_, summary="List what the CA has issued.", example="atoll ca list --subject alice"
    )
    verb.add_argument("--subject", help="only of this user, service or server")
    add_ca_dir(verb)
    add_list_options(verb)
    verb = add_verb(
        ca,
        "revoke",
        revoke,
        summary="Revoke a certificate, or all of a subject. Again is fine.",
        example="atoll ca revoke --subject alice",
    )
    what = verb.add_mutually_exclusive_group(required=True)
    what.add_argument("serial", nargs="?", metavar="SERIAL", help="as atoll ca list shows it")
    what.add_argument("--subject", help="everything that still holds for this user, service or server")
    what.add_argument("--file", metavar="FILE", help="the certificate itself")
    add_ca_dir(verb)


def init(options: argparse.Namespace) -> None:
    view = certificate_view(clock.now())
    style = style_of(options, view)
    lifetime = timedelta(seconds=parse_duration_s("lifetime", options.lifetime))
    authority = Authority.create(ca_dir(options), options.name, lifetime=lifetime)
    write(render_one(view, describe(authority.cert_pem)[0], style))


def issue(options: argparse.Namespace) -> None:
    view = certificate_view(clock.now())
    style = style_of(options, view)
    claims = claims_of(options)
    lifetime = _LIFETIMES[claims.kind]
    if options.lifetime:
        lifetime = timedelta(seconds=parse_duration_s("lifetime", options.lifetime))
    name, out = file_name(options.name), Path(options.out)
    authority = Authority.open(ca_dir(options))
    issued = authority.issue(claims, lifetime)
    _write(issued, authority.cert_pem, out, name)
    notice(f"wrote {out / name}.pem, {out / name}.key and {out / 'ca.pem'}", options)
    for said in handed_out(claims):
        notice(said, options)
    write(render_one(view, describe(issued.cert_pem)[0], style))


def renew(options: argparse.Namespace) -> None:
    view = certificate_view(clock.now())
    style = style_of(options, view)
    credential = credential_to_renew(options)
    authority = Authority.open(ca_dir(options))
    # Two at once could each take the other's new key for one that was left over.
    with files.exclusive(authority.directory / "renewing"):
        renewed = _renewed(authority, credential, options)
    write(render_one(view, describe(renewed.cert_pem)[0], style))


def _renewed(authority: Authority, held: store.Credential, options: argparse.Namespace) -> Certified:
    store.finish_replacing(held)
    pem = _read(held.cert)
    if options.keep_key or not held.key.exists():
        renewed = authority.renew(pem)
        files.write_durably(held.cert, renewed.cert_pem, mode=0o644)
        notice(f"renewed {held.cert} for the key that it had", options)
        return renewed
    _check_own_key(held)
    issued = authority.renew_with_new_key(pem)
    store.replace(held, issued)
    notice(f"renewed {held.cert} with a new key, {held.key}", options)
    return issued


def show(options: argparse.Namespace) -> None:
    view = certificate_view(clock.now())
    style = style_of(options, view)
    pem = _read(Path(options.file)) if options.file else Authority.open(ca_dir(options)).cert_pem
    found = describe(pem)
    if len(found) == 1:
        write(render_one(view, found[0], style))
    elif style.is_text:
        write("\n".join(render_one(view, each, style) for each in found))
    else:
        write(render_list(view, found, style))


def list_(options: argparse.Namespace) -> None:
    view = issued_view(clock.now())
    style = style_of(options, view)
    records = Authority.open(ca_dir(options)).list_issued(subject=options.subject)
    write(render_list(view, records, style))


def revoke(options: argparse.Namespace) -> None:
    authority = Authority.open(ca_dir(options))
    if options.subject is not None:
        revoked = [record.serial for record in authority.revoke_subject(options.subject)]
    elif options.file is not None:
        revoked = [authority.revoke_certificate(_read(Path(options.file)))]
    else:
        revoked = [authority.revoke(options.serial).serial]
    notice(f"revoked: {joined(revoked)}", options)


def claims_of(options: argparse.Namespace) -> Claims:
    groups, methods, limit = tuple(options.group), patterns(options.grant), limit_of(options.limit)
    kind = Kind(options.kind)
    if kind is not Kind.USER and limit is not None:
        raise Invalid(
            "kind",
            options.kind,
            "cannot have a limit",
            hint="issue a user certificate for what it calls, and a server certificate for what it serves",
        )
    if kind is Kind.SERVER:
        if groups or methods:
            raise Invalid(
                "kind", options.kind, "has no groups and grants", hint="issue a service certificate instead"
            )
        return server_claims((options.name, *options.address))
    if kind is Kind.SERVICE:
        return service_claims(options.name, tuple(options.address), groups, methods)
    if options.address:
        raise Invalid("address", options.address[0], "is a server's", hint="issue a service certificate")
    return user_claims(options.name, groups, methods, limit)


class _OldWord(argparse.Action):
    """`--method` read as a restriction, and gave rights away."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> NoReturn:
        raise Malformed(
            "ca issue: option '--method': there is none of that name",
            hint=f"--grant {values!r} hands out the same, on everyone's VMs; --limit restricts",
        )


def credential_to_renew(options: argparse.Namespace) -> store.Credential:
    """The files that are named; or those that a command would call with."""
    if options.file is None:
        return store.Credential(*own_files(options))
    path = certificate_path(options.file, Path(options.out))
    return store.Credential(path, path.with_suffix(".key"), path.with_name("ca.pem"))


def certificate_path(text: str, out: Path) -> Path:
    """The file itself, or that of a name as `ca issue` calls it."""
    path = Path(text)
    if path.is_file() or path.suffix == ".pem" or "/" in text:
        return path
    named = out / f"{file_name(text)}.pem"
    if not named.exists():
        raise NotFound(
            f"renewing the certificate of {text}: there is no {named}",
            hint="give its file, or its directory with --out",
        )
    return named


def _check_own_key(credential: store.Credential) -> None:
    if not store.belong_together(credential.cert, credential.key):
        raise Denied(
            f"renewing {credential.cert}: {credential.key} is not its key, and would be lost",
            hint="move that file away, or keep the key with --keep-key",
        )


def file_name(name: str) -> str:
    """The name that files of this subject begin with."""
    if name in ("", ".", "..", "ca") or "/" in name or "\0" in name or name.startswith("-"):
        raise Invalid("name", name, "cannot name a file", hint="letters, digits and . _ @ - make a good name")
    return name


def certificate_view(now: datetime) -> View[Description]:
    return View(
        name=lambda each: each.subject,
        columns=(
            Column("subject", lambda each: each.subject),
            Column("kind", lambda each: each.kind),
            Column("state", lambda each: each.state(now), paint=lambda each: _paint(each.state(now))),
            Column("issuer", lambda each: each.issuer),
            Column("not-before", lambda each: _moment(each.not_before)),
            Column("not-after", lambda each: _moment(each.not_after)),
            Column("groups", lambda each: joined(each.groups)),
            Column("grants", lambda each: _grants(each.methods)),
            Column("limit", lambda each: limited(each.limit) or "-"),
            Column("addresses", lambda each: joined(each.names)),
            Column("key", lambda each: each.key),
            Column("serial", lambda each: each.serial),
            Column("sha256", lambda each: each.sha256),
        ),
    )


def issued_view(now: datetime) -> View[IssuedRecord]:
    return View(
        name=lambda record: record.serial,
        columns=(
            Column("serial", lambda record: record.serial),
            Column("kind", lambda record: record.kind),
            Column("subject", lambda record: record.subject),
            Column("state", lambda record: _state(record, now), paint=lambda r: _paint(_state(r, now))),
            Column("not-after", lambda record: _moment(record.not_after)),
            Column("groups", lambda record: joined(record.groups)),
            Column("grants", lambda record: joined(record.methods)),
            Column("limit", lambda record: "-" if record.limit is None else joined(record.limit)),
            Column("addresses", lambda record: joined(record.names), wide=True),
            Column("not-before", lambda record: _moment(record.not_before), wide=True),
        ),
    )


def _grants(methods: tuple[str, ...]) -> str:
    return f"{joined(methods)}: {granted(methods)}" if methods else "-"


def _state(record: IssuedRecord, now: datetime) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if now > record.not_after else "valid"


def _paint(state: str) -> str:
    return {"valid": _GREEN, "revoked": _RED}.get(state, _DIM)


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"


def _read(path: Path) -> bytes:
    try:
        return files.read_limited(path, MAX_CERTIFICATES)
    except OSError as error:
        raise HostFailure(f"reading {path}: {(error.strerror or str(error)).lower()}") from None


def _write(issued: Issued, ca_pem: bytes, out: Path, name: str) -> None:
    files.make_dirs(out)
    files.write_durably(out / f"{name}.key", issued.key_pem)
    files.write_durably(out / f"{name}.pem", issued.cert_pem, mode=0o644)
    files.write_durably(out / "ca.pem", ca_pem, mode=0o644)
