"""Where the service is, and who we are. Effects: reads the client's directory, key and certificates; renews the
administrator's certificate where it may, and notes which of several addresses answers.

`atoll up` leaves in DIR/client what its user needs: context.json, ca.pem, user.pem, user.key. Options and
environment variables point elsewhere, one by one. A remote brings all four of its own: which one it is, and whether it
is one, `choose` says (docs/remote.md has the rule for people).
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from atoll.api import reaching
from atoll.api.client import Client
from atoll.api.hypervisor import PORT
from atoll.api.reaching import Address
from atoll.cli import answering, remotes
from atoll.cli.choosing import choose
from atoll.errors import AtollError, Denied, HostFailure, Malformed, Unauthenticated, Unreachable
from atoll.identity.tls import CurrentTls
from atoll.model.checks import check_name

DEFAULT_DIR = Path("/var/lib/atoll")
NAMESPACES = Path("/run/netns")


class ContextFile(msgspec.Struct, frozen=True):
    """DIR/client/context.json: where the cloud of that directory answers."""

    addresses: tuple[str, ...]
    namespace: str = ""
    """The network namespace that the cloud lives in; without it, nobody of ours is at those addresses."""


class Context(msgspec.Struct, frozen=True):
    """All that a client needs."""

    addresses: tuple[Address, ...]
    ca: Path
    cert: Path
    key: Path
    authority: Path | None = None
    """The directory of the CA that renews the certificate, where that is the one which `atoll up` made: that of
    somebody else ends when its issuer said."""
    remote: str = ""
    """The name of the remote that this is."""


def cloud_dir(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the cloud on this machine, for what is done on the machine itself."""
    if (named := getattr(options, "remote", None)) not in (None, remotes.LOCAL):
        raise Malformed(
            f"--remote {named}: this is about the cloud on this machine",
            hint="run it on the machine of that one",
        )
    return _directory(options, environment)


def _directory(options: argparse.Namespace, environment: Mapping[str, str]) -> Path:
    return Path(_setting(options, environment, "dir") or DEFAULT_DIR)


def own_files(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[Path, Path, Path]:
    """Certificate, key and CAs with which we call."""
    choice = choose(options, environment)
    if choice.remote != remotes.LOCAL:
        found = remotes.usable(choice.remote, environment)
        return (
            Path(options.cert or found.cert),
            Path(options.key or found.key),
            Path(options.ca or found.ca),
        )
    cert, key, ca = (_setting(options, environment, name) for name in ("cert", "key", "ca"))
    files = _directory(options, environment) / "client"
    return Path(cert or files / "user.pem"), Path(key or files / "user.key"), Path(ca or files / "ca.pem")


def find(
    options: argparse.Namespace,
    environment: Mapping[str, str] = os.environ,
    namespaces: Path = NAMESPACES,
) -> Context:
    """The cloud that is chosen: a remote; or, from options, else the environment, else what `atoll up` left."""
    choice = choose(options, environment)
    if choice.remote != remotes.LOCAL:
        return _of_remote(choice.remote, options, environment)
    directory = _directory(options, environment)
    nodes = _setting(options, environment, "node")
    addresses = parse_addresses(nodes) if nodes else _addresses_of(directory, namespaces)
    cert, key, ca = own_files(options, environment)
    return Context(
        addresses=answering.in_order(addresses, environment),
        ca=ca,
        cert=cert,
        key=key,
        authority=directory / "pki" if cert == directory / "client" / "user.pem" else None,
    )


def _of_remote(name: str, options: argparse.Namespace, environment: Mapping[str, str]) -> Context:
    found = remotes.usable(name, environment)
    addresses = parse_addresses(options.node) if options.node else found.addresses
    cert, key, ca = own_files(options, environment)
    return Context(answering.in_order(addresses, environment), ca, cert, key, remote=name)


@contextmanager
def connect(options: argparse.Namespace) -> Iterator[Client]:
    """The client for commands. It connects with its first call."""
    context = find(options)
    with Client(context.addresses, current_tls(context)) as client:
        _warn_in_time(context, options)
        try:
            with diagnosing(options):
                yield client
        finally:
            answering.note(context.addresses, client.address)


@contextmanager
def diagnosing(options: argparse.Namespace) -> Iterator[None]:
    """Whoever cannot be called, or hangs up, in the block: the error says why, as far as it is known here."""
    try:
        yield
    except (Unreachable, Unauthenticated) as error:
        raise diagnosed(error, options) from None


def current_tls(context: Context) -> Callable[[], ssl.SSLContext]:
    """For commands that go on for days: each connection is made with the certificate of the moment."""
    current = CurrentTls(lambda: tls_of(context), context.cert, context.key)

    def give() -> ssl.SSLContext:
        _keep_fresh(context)
        return current()

    return give


def _warn_in_time(context: Context, options: argparse.Namespace) -> None:
    from atoll.cli import expiry
    from atoll.system.clock import now

    expiry.warn(context.cert, options, now(), context.remote)


def _keep_fresh(context: Context) -> None:
    """Renew the administrator's certificate at half of its life, where its CA can be read.

    One that is over, and cannot be renewed here, is an error: a server only hangs up on it.
    """
    from atoll.identity import validity
    from atoll.system.clock import now

    try:
        held = validity.of_pem(context.cert.read_bytes())
    except (OSError, AtollError):
        return  # `tls_of` says what is wrong with it
    if not held.past_half(now()):
        return
    if context.authority is not None and os.access(context.authority / "ca.key", os.R_OK):
        from atoll.identity import store
        from atoll.identity.authority import Authority

        authority = context.authority
        credential = store.Credential(context.cert, context.key, context.ca)
        store.renew_if_past_half_life(credential, lambda: Authority.open(authority), now())
    elif held.over(now()):
        from atoll.cli import expiry

        if expiry.is_certainly_over(held, now()):
            raise _expired(context, held.not_after, now())


def _expired(context: Context, ended: datetime, now: datetime) -> Unauthenticated:
    from atoll.cli.expiry import how_to_renew

    return Unauthenticated(
        f"certificate {context.cert}: expired at {ended:%Y-%m-%d %H:%M:%SZ}; here it is {now:%Y-%m-%d %H:%M:%SZ}",
        hint="any command renews it on the machine of its CA: use sudo there"
        if context.authority is not None
        else how_to_renew(context.cert, context.remote),
    )


def diagnosed(error: AtollError, options: argparse.Namespace) -> AtollError:
    """Why a connection broke, if it is our certificate: a server that refuses it hangs up, or says one word."""
    if (remote := choose(options).remote) != remotes.LOCAL:
        error = _said_of_remote(error, remote)
    elif "cannot connect" in error.brief and not _setting(options, os.environ, "node"):
        directory = _directory(options, os.environ)
        return Unreachable(f"the cloud in {directory}: {error.brief}", hint=_how_to_start(directory))
    if isinstance(error, Unreachable) and "connection broke" in error.brief:
        return _ended(error, options) or _of_another_ca(error, options)
    if isinstance(error, Unauthenticated) and "TLS refused" in error.brief:
        if "certificate expired" in error.brief:
            return _ended(error, options) or error
        return _limit_unknown(error, options) or error
    return error


def _said_of_remote(error: AtollError, name: str) -> AtollError:
    if error.brief.startswith(f"remote {name}: "):
        return error  # it was said already
    if isinstance(error, Unreachable) and "cannot connect" in error.brief:
        return Unreachable(
            f"remote {name}: {error.brief}",
            hint=f"is that machine up, and the cloud there served to others (atoll up --listen)?"
            f" its addresses: atoll remote show {name}",
        )
    if isinstance(error, Unauthenticated) and "certificate verify failed" in error.brief:
        return Unauthenticated(
            f"remote {name}: {error.brief}: whoever answers there does not prove to be the cloud that was added",
            hint=f"if that is meant, as after it was made anew: atoll remote add --replace {name}",
        )
    return error


def _ended(error: AtollError, options: argparse.Namespace) -> AtollError | None:
    """For a certificate that is over: by our clock, or by the node's, which says so."""
    from atoll.identity import validity
    from atoll.system.clock import now

    context = find(options)
    try:
        held = validity.of_pem(context.cert.read_bytes())
    except (OSError, AtollError):
        return None
    if held.over(now()):
        return _expired(context, held.not_after, now())
    if isinstance(error, Unreachable):
        return None
    return Unauthenticated(
        f"certificate {context.cert}: expired by the node's clock; it ends at {held.not_after:%Y-%m-%d %H:%M:%SZ},"
        f" and here it is {now():%Y-%m-%d %H:%M:%SZ}",
        hint="set the clocks of this machine and of the node",
    )


def _limit_unknown(error: AtollError, options: argparse.Namespace) -> AtollError | None:
    """A node that does not know limits refuses certificates that have one: it would not keep to it."""
    from atoll.identity import certificates
    from atoll.identity.contents import Contents

    context = find(options)
    try:
        limit = Contents(certificates.from_pem(context.cert.read_bytes())).limit
    except (OSError, AtollError):
        return None
    if limit is None:
        return None
    hint = "it has a limit, which older nodes do not know: update the node, or use a certificate without one"
    return Unauthenticated(error.brief, hint=f"{hint}; or {error.hint}")


def _of_another_ca(error: AtollError, options: argparse.Namespace) -> AtollError:
    context = find(options)
    # Slow to import, and needed only now that there is time.
    from atoll.identity import certificates
    from atoll.identity.contents import subject

    try:
        ours, *sent = certificates.all_from_pem(context.cert.read_bytes())
        issuers = [*sent, *certificates.all_from_pem(context.ca.read_bytes())]
        who = subject(ours)
    except (AtollError, OSError):
        return error
    if not any(certificates.issued_by(ours, issuer) for issuer in issuers):
        return Unauthenticated(
            f"certificate {context.cert} of {who}: refused, since it is not of the CA in {context.ca}",
            hint="use a certificate of that CA; atoll ca issue makes one",
        )
    return error


def tls_of(context: Context) -> ssl.SSLContext:
    """TLS 1.2 or later; the server proves its name or address by our CAs, we prove who we are."""
    _keep_fresh(context)
    for what, path in (("CA certificate", context.ca), ("certificate", context.cert), ("key", context.key)):
        _check_readable(what, path)
    try:
        tls = ssl.create_default_context(cafile=context.ca)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except ssl.SSLError:
        raise Malformed(f"CA certificate {context.ca}: not a PEM certificate") from None
    try:
        # Without a password here, a locked key would stop at a prompt.
        _load(tls, context)
    except ssl.SSLError as error:
        reason = (error.reason or "not readable").lower().replace("_", " ")
        raise Malformed(
            f"certificate {context.cert} with key {context.key}: {reason}",
            hint="both must be PEM, belong together, and the key must have no password",
        ) from None
    return tls


def _load(tls: ssl.SSLContext, context: Context) -> None:
    try:
        tls.load_cert_chain(context.cert, context.key, password="")
    except ssl.SSLError:
        from atoll.identity import store

        # A renewal that was broken off between the two files has left the key beside.
        with suppress(OSError):
            store.finish_replacing(store.Credential(context.cert, context.key, context.ca))
        tls.load_cert_chain(context.cert, context.key, password="")


def parse_addresses(text: str) -> tuple[Address, ...]:
    """HOST[:PORT],… ; an IPv6 address with a port stands in brackets."""
    return tuple(reaching.parse("node", part.strip(), PORT) for part in text.split(","))


def _setting(options: argparse.Namespace, environment: Mapping[str, str], name: str) -> str | None:
    given: str | None = getattr(options, name)
    return given if given is not None else environment.get(f"ATOLL_{name.upper()}") or None


def _how_to_start(directory: Path) -> str:
    return (
        "start it with: atoll up"
        if directory == DEFAULT_DIR
        else f"start it with: atoll up --dir {directory}"
    )


def _addresses_of(directory: Path, namespaces: Path) -> tuple[Address, ...]:
    path = directory / "client" / "context.json"
    start = _how_to_start(directory)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ContextFile)
    except (FileNotFoundError, NotADirectoryError):
        raise Unreachable(f"no cloud in {directory}", hint=start) from None
    except OSError as error:
        raise _unreadable(f"reading {path}", error) from None
    except msgspec.MsgspecError as error:
        raise Malformed(f"{path}: {error}", hint="atoll up writes it anew") from None
    if found.namespace:
        check_name("namespace", found.namespace)
        # Its addresses are private: without the namespace they may belong to somebody else.
        if not (namespaces / found.namespace).exists():
            raise Unreachable(f"the cloud in {directory} is not up", hint=start)
    if not found.addresses:
        raise Malformed(f"{path}: names no address", hint="atoll up writes it anew")
    return tuple(reaching.parse("node", address, PORT) for address in found.addresses)


def _check_readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise _unreadable(f"{what} {path}", error) from None


def _unreadable(what: str, error: OSError) -> AtollError:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        return Denied(
            f"{what}: {reason}",
            hint="use sudo, or a certificate of your own: --cert FILE --key FILE (atoll ca issue makes one)",
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Malformed(
            f"{what}: {reason}", hint="atoll up makes it; --ca, --cert and --key point elsewhere"
        )
    return HostFailure(f"{what}: {reason}")
