"""Asking before something is destroyed. Pure but for `confirm`, which asks on the terminal.

Nothing is destroyed unasked: whoever is not at a terminal says --yes, or is refused before anything is touched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from atoll.cli.terminal import printable
from atoll.errors import AtollError, Malformed
from atoll.model.size import show_mib
from atoll.model.vm import VM
from atoll.model.volume import Volume

MOST_SHOWN = 20
"""Of a long list, so that the question stays on the screen."""


def add_yes_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; needed without a terminal")


def check_can_ask(doing: str, options: argparse.Namespace) -> None:
    """Refuse to destroy what nobody was asked about: to be called before anything is touched."""
    if not options.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Malformed(f"{doing}: there is no terminal to ask at, and nothing was done", hint="say --yes")


def confirm(
    question: str, going: Iterable[str], options: argparse.Namespace, kept: Iterable[str] = ()
) -> None:
    """Name what goes and what is kept, and ask, unless they said --yes. No is an error."""
    if options.yes:
        return
    check_can_ask(question, options)
    sys.stderr.write(question_text(question, list(going), list(kept)))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise AtollError("not confirmed: nothing was done")


def question_text(question: str, going: Sequence[str], kept: Sequence[str]) -> str:
    lines: list[str] = []
    for title, all_of_them in (("this goes for good:", going), ("this is kept:", kept)):
        if all_of_them:
            shown = all_of_them[:MOST_SHOWN]
            left = len(all_of_them) - len(shown)
            lines += [title, *(f"  {printable(line)}" for line in shown)]
            lines += [f"  … and {left} more"] if left else []
    return "".join(f"{line}\n" for line in lines) + f"{printable(question)}? [y/N] "


def vm_going(vm: VM) -> str:
    """A VM that is to be destroyed, with what goes with it: web (10.0.0.5, running): root; data 1 GiB, ext4."""
    volumes = "; ".join(volume_words(volume) for volume in vm.volumes) or "no volumes"
    note = ", protected: will be refused" if vm.protected else ""
    return f"{vm.name} ({vm.ip}, {vm.state}{note}): {volumes}"


def volume_words(volume: Volume) -> str:
    if not volume.size_mib:
        return f"{volume.name} in memory"
    where = " in memory" if volume.in_memory else ""
    fs = f", {volume.fs}" if volume.fs != "none" else ""
    return f"{volume.name} {show_mib(volume.size_mib)}{where}{fs}"


def vms_on_disk(vms: Path) -> list[str]:
    """The VMs in the directory of a node, by their records: nobody needs to be up to say what goes with it."""
    import msgspec

    found = []
    for path in sorted(vms.glob("*/vm.json")):
        try:
            record = msgspec.json.decode(path.read_bytes())
            found.append(vm_going(msgspec.convert(record["vm"], VM)))
        except (OSError, msgspec.MsgspecError, AtollError, KeyError, TypeError):
            found.append(f"{path.parent.name} (its record cannot be read)")
    return found
