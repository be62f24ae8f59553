"""`atoll vm console` and `atoll vm vnc`: their options. Effects: those of console.py and vnc.py."""

from __future__ import annotations

import argparse
import sys

from atoll.cli.arguments import Commands, add_verb
from atoll.cli.vm_ref import add_vm_argument, check_ref


def register(vm: Commands) -> None:
    add = add_verb(
        vm,
        "console",
        console,
        summary="Talk to the serial console of a VM. Ctrl-] leaves it.",
        example="echo uptime | atoll vm console web",
    )
    add_vm_argument(add)
    keyboard = add.add_mutually_exclusive_group()
    keyboard.add_argument("--watch", action="store_true", help="only look on, never type")
    keyboard.add_argument("--take", action="store_true", help="type, whoever has the keyboard now")
    add.add_argument(
        "--history",
        action=argparse.BooleanOptionalAction,
        help="first what the guest wrote before; default unless input comes from a pipe or file",
    )
    add.add_argument(
        "--linger",
        default="1s",
        metavar="TIME",
        help="input that is no terminal has ended: leave once the guest was silent so long; default 1s",
    )
    add = add_verb(
        vm,
        "vnc",
        vnc,
        summary="Offer the screen of a VM to VNC viewers on this machine, and print where.",
        example="atoll vm vnc web --viewer vncviewer",
    )
    add_vm_argument(add)
    add.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        help="on loopback; port 0: any; default 127.0.0.1 and the first free port from 5901",
    )
    add.add_argument(
        "--viewer",
        metavar="COMMAND",
        help="start it, and end with it; {host} and {port} stand for the address, which else comes last",
    )


def console(options: argparse.Namespace) -> int:
    from atoll.api.hypervisor import Attach
    from atoll.cli.arguments import parse_duration_s
    from atoll.cli.console import talk
    from atoll.cli.context import diagnosing, find, tls_of

    ref, linger_s = check_ref(options.vm), parse_duration_s("linger", options.linger)
    history = options.history
    if history is None:
        # A script that asks something waits for the answer, not for what was said before.
        history = options.watch or sys.stdin.isatty()
    how = Attach(history=history, watch=options.watch, take=options.take)
    context = find(options)
    with diagnosing(options):
        return talk(context.addresses, tls_of(context), ref, how, linger_s=linger_s, quiet=options.quiet)


def vnc(options: argparse.Namespace) -> int:
    from atoll.cli.context import diagnosing, find, tls_of
    from atoll.cli.vnc import tunnel

    ref, context = check_ref(options.vm), find(options)
    with diagnosing(options):
        return tunnel(
            context.addresses,
            tls_of(context),
            ref,
            listen=options.listen,
            viewer=options.viewer,
            quiet=options.quiet,
        )
