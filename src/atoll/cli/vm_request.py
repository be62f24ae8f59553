"""What a user typed about a VM, as requests that have passed the model's checks.

Pure but for `read_user_data`, which reads a file or standard input, and never more of it than is allowed.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from typing import IO

from atoll.api.hypervisor import VM_REF_PATTERN, CreateVm, StopVm, Wait
from atoll.cli.arguments import VM_METAVAR, Parser, parse_duration_s, parse_tags
from atoll.errors import Invalid
from atoll.model.checks import check_pattern
from atoll.model.size import parse_mib, parse_milli_cpus
from atoll.model.vm import MAX_USER_DATA, MachineType, VmSpec, check_user_data

MAX_GRACE_S = 600


def add_create_options(parser: Parser) -> None:
    parser.add_argument("--name", required=True, help="a DNS label; the guest's host name")
    parser.add_argument("--image", required=True, help="see: atoll image list")
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
    parser.add_argument("--subnet", metavar="ID", help="default: one that has a free address")
    parser.add_argument("--user-data", metavar="FILE", help="at most 1 MiB; - is standard input")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    parser.add_argument("--owner-user", action="append", default=[], metavar="USER", help="may be repeated")
    parser.add_argument("--owner-group", action="append", default=[], metavar="GROUP", help="may be repeated")
    parser.add_argument("--request-id", metavar="ID", help="the same id again gives the same VM, not another")
    add_wait_options(parser)


def add_wait_options(parser: Parser) -> None:
    parser.add_argument(
        "--wait-for", metavar="STAGE", help="started, dhcp, metadata or port:N; default: what the image says"
    )
    parser.add_argument("--timeout", default="60", metavar="SECONDS", help="how long to wait; default 60")


def add_stop_options(parser: Parser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--grace", default="15", metavar="SECONDS", help="time for the guest to power down; default 15"
    )
    how.add_argument("--force", action="store_true", help="at once, like pulling the plug")


def add_vm_argument(parser: Parser, *, several: bool = False) -> None:
    parser.add_argument("vm", nargs="+" if several else None, metavar=VM_METAVAR)


def create_request(options: argparse.Namespace, user_data: bytes) -> CreateVm:
    request_id = options.request_id
    if request_id is not None:
        check_pattern("request_id", request_id, r"[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits and . _ -")
    return CreateVm(
        spec=VmSpec(
            name=options.name,
            image=options.image,
            driver=options.driver,
            memory_mib=parse_mib("memory", options.memory),
            milli_cpus=parse_milli_cpus("cpus", options.cpus),
            machine_type=MachineType(options.machine_type),
            subnet=options.subnet,
            tags=parse_tags(options.tag),
            owner_users=tuple(options.owner_user),
            owner_groups=tuple(options.owner_group),
        ),
        user_data=user_data,
        wait=wait_request(options),
        request_id=request_id,
    )


def wait_request(options: argparse.Namespace) -> Wait:
    return Wait(wait_for=options.wait_for, timeout_s=parse_duration_s("timeout", options.timeout))


def stop_request(options: argparse.Namespace) -> StopVm:
    grace_s = 0.0 if options.force else parse_duration_s("grace", options.grace)
    if grace_s > MAX_GRACE_S:
        raise Invalid("grace", options.grace, f"must be at most {MAX_GRACE_S} seconds")
    return StopVm(grace_s=grace_s)


def check_ref(ref: str) -> str:
    return check_pattern("VM", ref, VM_REF_PATTERN, "an IPv4 address or a name of a-z, 0-9 and '-'")


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


def _read_limited(file: IO[bytes]) -> bytes:
    data = file.read(MAX_USER_DATA + 1)
    check_user_data(len(data))
    return data
