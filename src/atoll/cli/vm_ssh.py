"""`atoll vm ssh`: a login by the guest's own SSH server. Effects: a directory for a moment, `ssh`, and what it does.

The key is made for this login and is gone with it; what opens the guest is a certificate of a few minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.arguments import GLOBAL_OPTIONS, Commands, add_verb
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import HostFailure, Invalid
from atoll.model.checks import check_range

if TYPE_CHECKING:
    from atoll.cli.ssh_words import SshFiles

SSH_FAILED = 255
"""The status of ssh itself; a command may end so as well."""


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "ssh",
        ssh,
        summary="Log in to a guest by its SSH server, with a certificate of a few minutes; or run a command there.",
        example="atoll vm ssh web -l www -- uptime",
    )
    add.takes_words = True
    add_vm_argument(add)
    add.add_argument(
        "-l", "--login", default="root", metavar="USER", help="a user of the guest; default root"
    )
    add.add_argument(
        "-p", "--port", type=int, default=22, metavar="PORT", help="of the SSH server; default 22"
    )
    add.add_argument("-t", "--tty", action="store_true", help="a terminal for the command too")
    add.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of ssh_config, such as LocalForward or ForwardAgent; may be repeated",
    )
    add.usage = "atoll vm ssh IP|NAME [options] [-- COMMAND [ARGUMENT …]]"


def ssh(options: argparse.Namespace) -> int:
    from atoll.cli.ssh_words import SshFiles, explained

    ref = check_ref(options.vm)
    check_range("port", options.port, 1, 65535)
    check_user(options.login)
    with tempfile.TemporaryDirectory(prefix="atoll-ssh-") as directory:
        files = SshFiles(Path(directory))
        _prepare(options, ref, files)
        status = _run(options, ref, files)
        log, way = _text(files.log), _text(files.way)
    if status != SSH_FAILED:
        return status
    error = explained(ref, options.login, log, way)
    if error is not None:
        raise error
    return status


def check_user(user: str) -> str:
    """What a name of a user cannot be, since ssh would read something else in it."""
    if not user or user.startswith("-") or not user.isprintable() or set(user) & set("\"'\\ `$;|&<>(){}@:"):
        raise Invalid("login", user, "is not the name of a user")
    return user


def _prepare(options: argparse.Namespace, ref: str, files: SshFiles) -> None:
    """Key, certificate, and who vouches for the server."""
    from atoll.api.ssh import VM_SSH, AskSsh
    from atoll.cli.context import connect
    from atoll.cli.ssh_words import config, known_hosts

    with _there("ssh-keygen"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(files.key)],
            stdin=subprocess.DEVNULL,
            check=True,
        )
    public = files.key.with_suffix(".pub").read_text().strip()
    with connect(options) as client:
        access = client.call(VM_SSH, {"vm": ref}, body=AskSsh(public))
    files.certificate.write_text(access.certificate)
    files.known_hosts.write_text(known_hosts(access))
    files.config.write_text(config(ref, options.login, access.host, files, way_to(options, ref)))


def way_to(options: argparse.Namespace, ref: str) -> list[str]:
    """The command whose standard input and output are a connection to the guest."""
    given = [(flag, getattr(options, flag.removeprefix("--"))) for flag, *_ in GLOBAL_OPTIONS]
    chosen = [word for flag, value in given if value is not None for word in (flag, str(value))]
    return [
        sys.executable,
        "-m",
        "atoll.cli",
        "-q",
        *chosen,
        "vm",
        "forward",
        ref,
        "--stdio",
        str(options.port),
    ]


def _run(options: argparse.Namespace, ref: str, files: SshFiles) -> int:
    extra = [word for option in options.ssh_option for word in ("-o", option)]
    tty = ["-t"] if options.tty else []
    # Options of the caller come first: ssh takes the first value that it finds.
    command = ["ssh", *extra, *tty, "-F", str(files.config), "-E", str(files.log), "--", ref, *options.words]
    with _left_to_ssh(), _there("ssh"), subprocess.Popen(command) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _left_to_ssh() -> Iterator[None]:
    """Ctrl-C is for ssh, which has the terminal; we wait for it, and clear up."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _there(tool: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise HostFailure(
            f"vm ssh: there is no {tool} on this machine", hint="apt-get install openssh-client"
        ) from None
    except subprocess.CalledProcessError as error:
        raise HostFailure(f"vm ssh: {tool} ended with {error.returncode}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
