"""How a VM is named on the command line: by its address or its name. Pure."""

from __future__ import annotations

from atoll.api.hypervisor import VM_REF_PATTERN
from atoll.cli.arguments import VM_METAVAR, Parser
from atoll.model.checks import check_pattern


def add_vm_argument(parser: Parser, *, several: bool = False) -> None:
    parser.add_argument("vm", nargs="+" if several else None, metavar=VM_METAVAR)


def check_ref(ref: str) -> str:
    shape = "an IPv4 address or a name of a-z, 0-9 and '-'"
    return check_pattern("VM", ref, VM_REF_PATTERN, shape, hint="see: atoll vm list")
