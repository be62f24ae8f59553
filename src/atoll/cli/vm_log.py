"""`atoll vm log` and `atoll vm user-data`. Effects: calls the Hypervisor, prints.

On a terminal what a guest wrote cannot command it; a file or a pipe, and whoever says --raw, gets every byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.api import hypervisor as api
from atoll.api.client import Client
from atoll.cli.arguments import Commands, add_verb
from atoll.cli.context import connect
from atoll.cli.guest_text import GuestText
from atoll.cli.output import notice
from atoll.cli.terminal import has_colour
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import NotFound

POLL_S = 0.5


def register(vm: Commands) -> None:
    add = add_verb(
        vm, "log", log, summary="Print what a guest wrote to its console.", example="atoll vm log -f web"
    )
    add_vm_argument(add)
    add.add_argument("-f", "--follow", action="store_true", help="go on with what it writes")
    _add_raw_option(add)
    add = add_verb(
        vm,
        "user-data",
        user_data,
        summary="Print the user data of a VM.",
        example="atoll vm user-data web > user-data",
    )
    add_vm_argument(add)
    _add_raw_option(add)


def _add_raw_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", action="store_true", help="every byte, also to a terminal, which it can take over"
    )


class Paper:
    """Standard output for what a guest wrote."""

    def __init__(self, *, raw: bool) -> None:
        self._text = None if raw else GuestText(colour=has_colour(sys.stdout, os.environ))

    def write(self, data: bytes) -> None:
        if self._text is None:
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(self._text.feed(data))

    def flush(self) -> None:
        sys.stdout.flush()

    def close(self) -> None:
        if self._text is not None:
            sys.stdout.write(self._text.close())
            sys.stdout.flush()


@contextmanager
def _paper(options: argparse.Namespace) -> Iterator[Paper]:
    paper = Paper(raw=options.raw or not sys.stdout.isatty())
    try:
        yield paper
    finally:
        paper.close()


def log(options: argparse.Namespace) -> None:
    ref = check_ref(options.vm)
    with connect(options) as client, _paper(options) as paper:
        at = _print_log(client, ref, None, paper, options)
        while options.follow:
            time.sleep(POLL_S)
            try:
                at = _print_log(client, ref, at, paper, options)
            except NotFound:
                notice(f"{ref}: gone", options)
                return


def _print_log(client: Client, ref: str, at: int | None, paper: Paper, options: argparse.Namespace) -> int:
    """Print what is new after a place in all that the guest ever wrote; the place behind it."""
    begin, chunks = client.download_part(api.VM_LOG, {"vm": ref}, query=api.LogFrom(at))
    if at is not None and begin > at:
        notice(f"… {begin - at:,} bytes are gone …", options)
    end = begin
    for chunk in chunks:
        paper.write(chunk)
        end += len(chunk)
    paper.flush()
    # The guest has not written that much: it is another one, and all of its log is new.
    return 0 if at is not None and begin < at else end


def user_data(options: argparse.Namespace) -> None:
    ref = check_ref(options.vm)
    with connect(options) as client, _paper(options) as paper:
        for chunk in client.download(api.VM_USER_DATA, {"vm": ref}):
            paper.write(chunk)
        paper.flush()
