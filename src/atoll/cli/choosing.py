"""Which cloud a command is about. Reads what `atoll remote use` chose. docs/remote.md has the rule for people."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from msgspec import Struct

from atoll.cli import remotes
from atoll.errors import Malformed

_VARIABLES = ("ATOLL_NODE", "ATOLL_DIR", "ATOLL_CERT", "ATOLL_KEY", "ATOLL_CA")
"""Each of them is about the cloud on this machine, or about one without a name."""


class Choice(Struct, frozen=True):
    """Which cloud a command is about: a remote, or `local`; and what said so."""

    remote: str
    by: str


def choose(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Choice:
    """The nearest word counts: the option, then the environment, then `atoll remote use`."""
    named: str | None = getattr(options, "remote", None)
    if named is not None:
        if named != remotes.LOCAL and options.dir is not None:
            raise Malformed(
                f"--remote {named} and --dir {options.dir} are two clouds", hint="say one of them"
            )
        return Choice(named, "--remote")
    for name in ("node", "dir"):
        if getattr(options, name) is not None:
            return Choice(remotes.LOCAL, f"--{name}")
    if environment.get("ATOLL_REMOTE"):
        return Choice(environment["ATOLL_REMOTE"], "ATOLL_REMOTE")
    for variable in _VARIABLES:
        if environment.get(variable):
            return Choice(remotes.LOCAL, variable)
    kept = remotes.chosen(environment)
    return Choice(kept, "atoll remote use") if kept else Choice(remotes.LOCAL, "default")
