"""Command-line arguments: the parser that all nouns share, and values as people write them. Pure."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from atoll.cli.words import unknown, unknown_noun
from atoll.errors import Invalid, Malformed

GLOBAL_OPTIONS = (
    ("--remote", "NAME", "ATOLL_REMOTE", "a cloud elsewhere: atoll remote list"),
    ("--dir", "DIR", "ATOLL_DIR", "the cloud on this machine (/var/lib/atoll)"),
    ("--node", "HOST[:PORT],…", "ATOLL_NODE", "this Hypervisor; the first that answers"),
    ("--cert", "FILE", "ATOLL_CERT", "your certificate (DIR/client/user.pem)"),
    ("--key", "FILE", "ATOLL_KEY", "its private key (DIR/client/user.key)"),
    ("--ca", "FILE", "ATOLL_CA", "the CA to trust (DIR/client/ca.pem)"),
)
EXIT_STATUSES = {
    0: "ok",
    1: "error",
    2: "usage",
    3: "not found",
    4: "conflict",
    5: "denied",
    6: "no capacity",
    7: "unreachable",
    8: "timed out",
    9: "too many calls",
    10: "done in part",
    130: "interrupted",
}
QUIET = ("-q", "--quiet")
VM_METAVAR = "IP|NAME"
"""Marks an argument that names a VM, for the reader and for completion."""

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"

Run: TypeAlias = Callable[[argparse.Namespace], int | None]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to a limit. (argparse itself would import shutil to find out.)"""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ else 80
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, max_help_position=32, width=max(40, min(columns, 110) - 2))


class Parser(argparse.ArgumentParser):
    """Takes the global options in any place, never guesses abbreviations, fails like everything else does."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", Formatter)
        super().__init__(allow_abbrev=False, **settings)
        for flag, metavar, _, _ in GLOBAL_OPTIONS:
            self.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.add_argument(
            *QUIET, action="store_true", default=argparse.SUPPRESS, help="no progress on standard error"
        )

    takes_words = False
    """What follows `--` is somebody else's, and comes as `words`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.takes_words:
            return super().parse_known_args(args, namespace)
        end = args.index("--") if "--" in args else len(args)
        options, unused = super().parse_known_args(args[:end], namespace)
        options.words = args[end + 1 :]
        return options, unused

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unused = self.parse_known_args(args, namespace)
        if unused:
            # Known to the verb's own parser, which can say what there is instead.
            options.parser.refuse(unused)
        return options

    @property
    def flags(self) -> Collection[str]:
        """The options that this takes."""
        return self._option_string_actions

    def refuse(self, unused: Sequence[str]) -> NoReturn:
        if unused[0].startswith("-"):
            known = [option for option in self._option_string_actions if option.startswith("--")]
            raise unknown(self._said_of_us("option"), unused[0].partition("=")[0], known)
        self.error(f"unrecognized arguments: {' '.join(unused)}")

    def error(self, message: str) -> NoReturn:
        raise Malformed(self._said_of_us(message), hint=f"see: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[-1] if action.option_strings else action.dest
            raise unknown(self._said_of_us(what), str(value), map(str, action.choices))

    def _said_of_us(self, message: str) -> str:
        subject = self.prog.removeprefix("atoll").strip()
        return f"{subject}: {message}" if subject else message


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def top_parser() -> tuple[Parser, Commands]:
    parser = Parser(prog="atoll")
    parser.set_defaults(remote=None, dir=None, node=None, cert=None, key=None, ca=None, quiet=False)
    return parser, parser.add_subparsers(metavar="NOUN", dest="noun", required=True)


def add_noun(commands: Commands, name: str, summary: str) -> Commands:
    """A noun whose verbs are to be added to what this returns."""
    parser = commands.add_parser(name, help=summary, description=summary)
    # The noun alone says what its verbs are.
    parser.set_defaults(run=lambda _: parser.print_help(), parser=parser)
    return parser.add_subparsers(metavar="VERB", dest="verb")


def add_verb(commands: Commands, name: str, run: Run, *, summary: str, example: str) -> Parser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}\n\nglobal options: see atoll --help",
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def as_help(argv: Sequence[str]) -> Sequence[str]:
    """`help vm create` and `vm help create` are `vm create --help`."""
    for place, word in enumerate(argv[:2]):
        if word == "help":
            return [*argv[:place], *argv[place + 1 :], "--help"]
        if word.startswith("-"):
            break
    return argv


def noun_of(argv: Sequence[str], nouns: Iterable[str]) -> tuple[str | None, bool]:
    """The noun of a command line, and whether help was asked for before it."""
    words = iter(argv)
    with_value = {flag for flag, *_ in GLOBAL_OPTIONS}
    for word in words:
        if word in ("-h", "--help"):
            return None, True
        if word in with_value:
            next(words, None)
        elif word.startswith("-"):
            if word not in QUIET and word.partition("=")[0] not in with_value:
                raise Malformed(
                    f"{word}: not an option of atoll itself", hint="options of a verb stand behind it"
                )
        elif word in nouns:
            return word, False
        else:
            raise unknown_noun(word, list(nouns))
    return None, False


def verb_of(argv: Sequence[str], noun: str) -> str | None:
    """The word after the noun, where that is plain to see."""
    after = argv[list(argv).index(noun) + 1 :]
    return after[0] if after and not after[0].startswith("-") else None


def help_text(nouns: Mapping[str, str]) -> str:
    """`atoll --help`, without importing any noun."""
    lines = ["usage: atoll [options] NOUN VERB …", "", "One small cloud over all of your machines.", ""]
    lines += [f"  {noun:<12}{summary}" for noun, summary in nouns.items()]
    lines += ["", "options, before or after the noun (or set the variable):"]
    lines += [
        f"  {f'{flag} {metavar}':<24}{text} [{variable}]" for flag, metavar, variable, text in GLOBAL_OPTIONS
    ]
    lines += [
        f"  {'-q, --quiet':<24}no progress on standard error",
        f"  {'-V, --version':<24}print the version",
        "",
        *_statuses(),
        "",
        "atoll help NOUN [VERB] says more. To begin: atoll up && atoll vm create",
    ]
    return "\n".join(lines) + "\n"


def _statuses(per_line: int = 4) -> list[str]:
    told = [f"{status} {meaning}" for status, meaning in EXIT_STATUSES.items()]
    rows = [", ".join(told[first : first + per_line]) for first in range(0, len(told), per_line)]
    lines = ",\n".join(rows).splitlines()
    return [f"{'exit status:' if not index else '':<13}{line}" for index, line in enumerate(lines)]


def parse_duration_s(field: str, text: str) -> float:
    """Seconds of '0.5s', '90s', '15m', '1h30m', '24h' or '30d'. A bare number could be anything, but for nothing."""
    plain = text.strip().lower()
    if re.fullmatch(r"0+(\.0+)?", plain):
        return 0.0
    if re.fullmatch(_NUMBER, plain):
        raise Invalid(field, text, "has no unit", hint=f"write {plain}s or {plain}m")
    if not re.fullmatch(rf"({_NUMBER}(ms|[smhdw]))+", plain):
        raise Invalid(field, text, "is not a duration", hint="write 90s, 15m, 1h30m, 24h or 30d")
    return sum(
        float(number) * _UNITS_S[unit] for number, unit in re.findall(rf"({_NUMBER})(ms|[smhdw])", plain)
    )


def plain_mac(text: str) -> str:
    """A MAC as we write it: lower case, with colons. What is none stays as it is."""
    is_mac = re.fullmatch(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", text)
    return text.lower().replace("-", ":") if is_mac else text


def parse_tags(pairs: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE pairs; the model checks what they may consist of."""
    tags: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Invalid("tag", pair, "is not KEY=VALUE", hint="for example: --tag role=web")
        if key in tags:
            raise Invalid("tag", pair, "is given twice")
        tags[key] = value
    return tags
