"""`atoll`: finds the noun, imports its module and nothing else, runs the verb.

Effects: those of the verb. Imports stand inside the functions that need them, because each of them is a
wait for the user: `atoll --version` costs the bare interpreter.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
_NOT_WRITTEN = 120  # the interpreter's own
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.cli.arguments import Parser

NOUNS = {
    "up": "start a cloud on this machine, or find it again",
    "down": "stop its services; with --destroy leave nothing at all",
    "status": "what is up",
    "service": "the cloud as a service of this machine: install, show, uninstall",
    "doctor": "check this machine and say how to mend what is missing",
    "vm": "create, list, change, stop and destroy VMs; consoles and logs",
    "volume": "add, attach, grow, move and delete volumes of VMs",
    "subnet": "list, show, add, change and delete the networks of VMs",
    "node": "install and show a node; drain it; leases of other machines",
    "quota": "what users and groups may have: list, show, set, delete",
    "share": "folders of the node for guests: list, allow, deny",
    "lease": "list and follow the leases of DHCP",
    "image": "list images",
    "event": "list and follow what happens to VMs",
    "audit": "list who did what on a node",
    "remote": "clouds elsewhere: invite users, add, list, use and remove",
    "ca": "issue, sign, inspect and revoke certificates",
    "completion": "completion for bash, zsh and fish",
}
"""Each is a module of this package with a function `register(commands)`."""


_PIECES_BETWEEN_COLLECTIONS = 50_000
"""The interpreter's 700 mean dozens of looks at modules that were just imported."""


def entry() -> None:
    """The console script."""
    import gc

    gc.set_threshold(_PIECES_BETWEEN_COLLECTIONS)
    end(main(sys.argv[1:]))


def end(status: int) -> None:
    """End this process. What it has in memory is not taken apart piece by piece first."""
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        sys.exit(status)
    import os

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # whoever read it has gone, which has been said
            status = status or _NOT_WRITTEN
    os._exit(status)


def main(argv: Sequence[str]) -> int:
    """Run a command line; the exit status is for the shell."""
    if list(argv) in (["--version"], ["-V"]):
        from atoll import RECORD_FORMAT, __version__

        python = ".".join(map(str, sys.version_info[:3]))
        sys.stdout.write(f"atoll {__version__} (records of format {RECORD_FORMAT}, Python {python})\n")
        return 0
    if argv[:1] == ["__complete"]:
        from atoll.cli.completion import answer_shell

        return answer_shell(argv[1:])
    from atoll.cli import failure

    with failure.terminated_as_exit():
        try:
            status = _run(argv)
            sys.stdout.flush()
        except BaseException as error:
            return failure.report(error)
        return status


def _spare_typing_extensions() -> None:
    """msgspec takes what it needs from `typing` where that is not installed: the same, 8 ms sooner."""
    if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
        import msgspec  # noqa: F401

        del sys.modules["typing_extensions"]


def _run(argv: Sequence[str]) -> int:
    from atoll.cli.arguments import as_help, help_text, noun_of, verb_of

    argv = as_help(argv)
    noun, _ = noun_of(argv, NOUNS)
    if noun is None:
        sys.stdout.write(help_text(NOUNS))
        return 0
    _spare_typing_extensions()
    options = parser_for([noun], verb_of(argv, noun)).parse_args(argv)
    # What a guest or a tag says must not end a listing on a terminal that cannot show it.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from atoll.cli.words import in_words_of
    from atoll.errors import AtollError

    try:
        return options.run(options) or 0
    except AtollError as error:
        raise in_words_of(error, options.parser.flags) from error.__cause__


def parser_for(nouns: Iterable[str], verb: str | None = None) -> Parser:
    """The parser that knows these nouns; of one that has many verbs, perhaps this one alone."""
    from importlib import import_module

    from atoll.cli.arguments import top_parser

    parser, commands = top_parser()
    for noun in nouns:
        register = import_module(f"atoll.cli.{noun}").register
        if verb is not None and noun == "vm":
            register(commands, verb)
        else:
            register(commands)
    return parser
