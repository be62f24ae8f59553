"""What a user typed about a VM, as requests that have passed the model's checks.

Pure but for `read_user_data`, `read_ssh_keys` and `read_credential`, which read a file or standard input, and never
more of it than is allowed.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import structs

from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.cli.arguments import Parser, parse_duration_s, parse_tags
from atoll.cli.vm_policies import (
    add_hardware_options,
    add_policy_options,
    hardware_of,
    parse_expiry,
    parse_share,
    parse_volume,
)
from atoll.errors import Invalid, Malformed
from atoll.model.checks import check_pattern
from atoll.model.long_lived import MAX_PEM, LongLivedCredential, from_pem
from atoll.model.size import parse_mib, parse_milli_cpus
from atoll.model.ssh import KINDS, MAX_KEY, MAX_KEYS
from atoll.model.vm import (
    MAX_USER_DATA,
    ConsoleKind,
    MachineType,
    RestartPolicy,
    VmSpec,
    check_user_data,
)
from atoll.system import clock

MAX_GRACE_S = 600
MAX_REQUEST = 4 << 20
MAX_COUNT = 1000
UNSAID = "unsaid"


def add_create_options(parser: Parser) -> None:
    parser.add_argument("--name", help="a DNS label, the guest's host name; default: one that is made up")
    parser.add_argument("--image", help="see: atoll image list; default: appliance, or the only one")
    parser.add_argument("--memory", default="128MiB", metavar="SIZE", help="default 128MiB")
    parser.add_argument("--cpus", default="0.25", metavar="N", help="2, 0.5 or 250m; default 0.25")
    parser.add_argument("--driver", default="qemu", help="default qemu; see: atoll node show")
    parser.add_argument(
        "--machine-type",
        choices=[str(kind) for kind in MachineType],
        default=str(MachineType.AUTO),
        metavar="TYPE",
        help="auto, q35 or microvm",
    )
    parser.add_argument(
        "--console",
        choices=[str(kind) for kind in ConsoleKind],
        default=str(ConsoleKind.SERIAL),
        metavar="KIND",
        help="none, serial, or vnc: a screen besides; default serial",
    )
    add_hardware_options(parser)
    parser.add_argument("--subnet", metavar="ID", help="default: one that has a free address")
    parser.add_argument(
        "--extra-subnet",
        action="append",
        default=[],
        metavar="ID",
        help="one more interface, in this subnet; may be repeated",
    )
    parser.add_argument("--user-data", metavar="FILE", help="at most 1 MiB; - is standard input")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    parser.add_argument("--owner-user", action="append", default=[], metavar="USER", help="may be repeated")
    parser.add_argument("--owner-group", action="append", default=[], metavar="GROUP", help="may be repeated")
    parser.add_argument(
        "--ssh-key", action="append", default=[], metavar="FILE|KEY", help="a public key; may be repeated"
    )
    parser.add_argument(
        "--role",
        metavar="ROLE",
        help="what the guest acts as; needs its group, an operator, or its credential",
    )
    parser.add_argument(
        "--role-credential",
        metavar="FILE",
        help="the role's certificate and key in PEM, to renew the guest's with; - is standard input",
    )
    parser.add_argument(
        "--imdsv2-required",
        action=argparse.BooleanOptionalAction,
        help="give metadata for tokens only (default: where the image's guests can get them)",
    )
    parser.add_argument("--request-id", metavar="ID", help="the same id again gives the same VM, not another")
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="size=SIZE[,KEY=VALUE…]",
        help="with name=, format=raw|qcow2, fs=ext4, type=memory, store=, interface=virtio|nvme|ide; may be repeated",
    )
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="NAME:PATH[:ro]",
        help="a folder of the node, and where in the guest; see: atoll share list; may be repeated",
    )
    parser.add_argument(
        "--root-size",
        metavar="SIZE",
        help="how much a container may change of its image; default: the node's",
    )
    add_policy_options(parser, changing=False)
    # Everything so far is in a request; those below say how to go about it.
    known = {action.dest: action.default for action in parser._actions}
    parser.set_defaults(
        of_request={name: value for name, value in known.items() if value != argparse.SUPPRESS}
    )
    parser.add_argument(
        "--request",
        metavar="FILE",
        help="ask for what is in it, as vm show --as-request prints it; - is standard input",
    )
    parser.add_argument("--count", default="1", metavar="N", help="make N of them: NAME-1, NAME-2, …")
    add_wait_options(parser)


def parse_count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_COUNT:
        raise Invalid("count", text, f"must be a number from 1 to {MAX_COUNT}")
    return int(text)


def add_wait_options(parser: Parser) -> None:
    parser.add_argument(
        "--wait-for", metavar="STAGE", help="started, dhcp, metadata or port:N; default: what the image says"
    )
    parser.add_argument(
        "--timeout", default="60s", metavar="TIME", help="how long to wait: 90s, 5m; default 60s"
    )


def add_stop_options(parser: Parser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--grace", default="15s", metavar="TIME", help="time for the guest to power down; default 15s"
    )
    how.add_argument("--force", action="store_true", help="at once, like pulling the plug")


def create_request(options: argparse.Namespace, user_data: bytes, now: datetime | None = None) -> CreateVm:
    """What was typed. A name or an image that was not is filled in later: only the node knows what there is."""
    request_id = options.request_id
    if request_id is not None:
        check_pattern("request_id", request_id, r"[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits and . _ -")
    return CreateVm(
        spec=VmSpec(
            name=UNSAID if options.name is None else options.name,
            image=UNSAID if options.image is None else options.image,
            driver=options.driver,
            memory_mib=parse_mib("memory", options.memory),
            milli_cpus=parse_milli_cpus("cpus", options.cpus),
            machine_type=MachineType(options.machine_type),
            console=ConsoleKind(options.console),
            subnet=options.subnet,
            extra_subnets=tuple(options.extra_subnet),
            **hardware_of(options),
            tags=parse_tags(options.tag),
            owner_users=tuple(options.owner_user),
            owner_groups=tuple(options.owner_group),
            ssh_keys=read_ssh_keys(options.ssh_key),
            role=options.role,
            imdsv2_required=options.imdsv2_required,
            **_policies(options, now),
        ),
        user_data=user_data,
        wait=wait_request(options),
        request_id=request_id,
        acknowledge=True,
        role_credential=read_credential(options),
    )


def _policies(options: argparse.Namespace, now: datetime | None) -> dict[str, Any]:
    given = {
        "restart": options.restart and RestartPolicy(options.restart),
        "destroy_on_power_down": options.destroy_on_power_down,
        "protected": options.protect,
        "expires_at": options.expires and parse_expiry(options.expires, now or clock.now()),
        "root_mib": options.root_size and parse_mib("root_size", options.root_size),
        "volumes": tuple(parse_volume(text) for text in options.volume) or None,
        "shares": tuple(parse_share(text) for text in options.share) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def replayed_request(options: argparse.Namespace) -> CreateVm:
    """The request in a file, under another name if one is given, and waited for as this command says."""
    for name, default in options.of_request.items():
        if name not in ("name", "request_id", "role_credential") and getattr(options, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise Malformed(
                f"vm create: {flag} and --request cannot be combined", hint="change it in the file instead"
            )
    text = _read_file(options.request, MAX_REQUEST)
    try:
        request = msgspec.json.decode(text, type=CreateVm)
    except msgspec.MsgspecError as error:
        raise Malformed(
            f"request {options.request}: {error}", hint="see: atoll vm show NAME --as-request"
        ) from None
    spec = request.spec if options.name is None else structs.replace(request.spec, name=options.name)
    return CreateVm(
        spec,
        request.user_data,
        wait_request(options),
        options.request_id,
        acknowledge=True,
        role_credential=read_credential(options) or request.role_credential,
    )


def wait_request(options: argparse.Namespace) -> Wait:
    return Wait(wait_for=options.wait_for, timeout_s=parse_duration_s("timeout", options.timeout))


def stop_request(options: argparse.Namespace) -> StopVm:
    grace_s = 0.0 if options.force else parse_duration_s("grace", options.grace)
    if grace_s > MAX_GRACE_S:
        raise Invalid("grace", options.grace, f"must be at most {MAX_GRACE_S} seconds")
    return StopVm(grace_s=grace_s)


def read_user_data(source: str | None) -> bytes:
    """The file's content; a file that is too large is refused by its size, a pipe by what it has sent."""
    if source is None:
        return b""
    if source == "-":
        return _read_limited(sys.stdin.buffer)
    try:
        with open(source, "rb") as file:  # noqa: PTH123 - a name as given, also /dev/fd/63
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                check_user_data(status.st_size)
            return _read_limited(file)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise Invalid("user_data", source, why, hint="give the path of a file that you can read") from None


def read_credential(options: argparse.Namespace) -> LongLivedCredential | None:
    """The credential in a file that is for its owner alone, or that somebody writes to us."""
    source = options.role_credential
    if source is None:
        return None
    if source == "-" and "-" in (options.user_data, options.request):
        raise Malformed(
            "vm create: standard input can be one thing only",
            hint="give the credential, or the other, as a file",
        )
    try:
        if source == "-":
            return _credential(sys.stdin.buffer)
        with open(source, "rb") as file:  # noqa: PTH123 - a name as given, also /dev/fd/63
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                raise Invalid(
                    "role_credential", source, "others than its owner may read it", hint=f"chmod 600 {source}"
                )
            return _credential(file)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or "cannot be read").lower()
        raise Invalid(
            "role_credential", source, why, hint="give the path of a file that you can read"
        ) from None


def _credential(file: IO[bytes]) -> LongLivedCredential:
    data = file.read(MAX_PEM + 1)
    if len(data) > MAX_PEM:
        raise Invalid("role_credential", f"{len(data)} bytes", f"must be at most {MAX_PEM} bytes")
    return from_pem(data.decode("ascii", errors="replace"))


def read_ssh_keys(sources: Sequence[str]) -> tuple[str, ...]:
    """Keys as they are given, and those in files: one to a line, as in a .pub or authorized_keys file."""
    found: list[str] = []
    for source in sources:
        if source.startswith(KINDS):
            found.append(source.strip())
            continue
        try:
            text = Path(source).expanduser().read_bytes()[: MAX_KEYS * MAX_KEY].decode(errors="replace")
        except (OSError, ValueError, RuntimeError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise Invalid("ssh_key", source[:80], why, hint="give a public key, or a file of them") from None
        if "PRIVATE KEY" in text:
            raise Invalid("ssh_key", source, "holds a private key", hint=f"did you mean {source}.pub?")
        lines = (line.strip() for line in text.splitlines())
        found += [line for line in lines if line and not line.startswith("#")]
    return tuple(dict.fromkeys(found))


def _read_file(source: str, limit: int) -> bytes:
    try:
        if source == "-":
            return sys.stdin.buffer.read(limit)
        with open(source, "rb") as file:  # noqa: PTH123 - a name as given, also /dev/fd/63
            return file.read(limit)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise Invalid("request", source, why, hint="give the path of a file that you can read") from None


def _read_limited(file: IO[bytes]) -> bytes:
    data = file.read(MAX_USER_DATA + 1)
    check_user_data(len(data))
    return data
