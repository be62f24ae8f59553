"""What can come next on a command line that is being typed. Pure: the words come from the parsers themselves.

Names that only the node knows are left open here, as a `Names`: `completion_names` has them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from atoll.cli.arguments import GLOBAL_OPTIONS, VM_METAVAR


class Names(StrEnum):
    """What only the node can name, or the user's own files."""

    VM = "vm"
    VM_PATH = "vm-path"
    IMAGE = "image"
    SUBNET = "subnet"
    VOLUME = "volume"
    STORE = "store"
    KIND = "kind"
    OWNER = "owner"
    TAG = "tag"
    REMOTE = "remote"
    SHARE = "share"
    SHARE_PLACE = "share-place"


class Paths(StrEnum):
    FILES = "files"
    DIRECTORIES = "directories"


@dataclass(frozen=True, slots=True)
class Next:
    """What can stand at the cursor."""

    words: Mapping[str, str] = field(default_factory=dict)
    """Each with what it means."""
    names: Names | None = None
    of_vm: str = ""
    """Whose, of volumes."""
    paths: Paths | None = None
    columns_of: str = ""
    """The columns of what this command shows, by the words of the command."""
    kept: str = ""
    """What stands before it in the same word, such as `--image=` or `name,ip,`."""
    goes_on: bool = False
    """More may follow in the same word: no space behind it."""

    def of(self, words: Iterable[str]) -> Next:
        return replace(self, words=dict.fromkeys(words, ""))


STAGES = ("started", "dhcp", "metadata", "port:")
VOLUME_FIELDS = (
    *("size=", "name=", "format=raw", "format=qcow2", "fs=ext4", "type=memory", "store="),
    *("interface=virtio", "interface=nvme", "interface=ide"),
)
NOTHING = Next()

_BY_FLAG: Mapping[str, Next] = {
    "--image": Next(names=Names.IMAGE),
    "--extra-subnet": Next(names=Names.SUBNET),
    "--driver": Next(names=Names.KIND),
    "--kind": Next(names=Names.KIND),
    "--store": Next(names=Names.STORE),
    "--owner": Next(names=Names.OWNER),
    "--tag": Next(names=Names.TAG),
    "--remote": Next(names=Names.REMOTE),
    "--share": Next(names=Names.SHARE_PLACE, goes_on=True),
    "--no-share": Next(names=Names.SHARE),
    "--wait-for": Next(goes_on=True).of(STAGES),
    "--volume": Next(goes_on=True).of(VOLUME_FIELDS),
}
_BY_METAVAR: Mapping[str, Next] = {
    VM_METAVAR: Next(names=Names.VM),
    "REMOTE": Next(names=Names.REMOTE),
    "REMOTE|local": Next(names=Names.REMOTE),
    "VOLUME": Next(names=Names.VOLUME),
    "SHARE": Next(names=Names.SHARE),
    "STORE": Next(names=Names.STORE),
    "ID|CIDR": Next(names=Names.SUBNET),
    "SOURCE": Next(names=Names.VM_PATH, paths=Paths.FILES, goes_on=True),
    "DESTINATION": Next(names=Names.VM_PATH, paths=Paths.FILES, goes_on=True),
    "DIR": Next(paths=Paths.DIRECTORIES),
}
_NEW_SUBNET = ("subnet add",)
"""Where a name of its own is made up."""


@dataclass(slots=True)
class _Typed:
    """How far a command line has come."""

    parser: argparse.ArgumentParser
    path: tuple[str, ...] = ()
    awaits_value: argparse.Action | None = None
    given: dict[str, list[str]] = field(default_factory=dict)
    """Options and arguments by their `dest`."""
    words: int = 0
    """Arguments of the verb that are not options."""
    is_over: bool = False
    """What follows is somebody else's, or was not understood."""

    def take(self, word: str) -> None:
        if self.is_over:
            return
        if self.awaits_value is not None:
            self._note(self.awaits_value, word)
            self.awaits_value = None
        elif word == "--":
            self.is_over = True
        elif word.startswith("-") and len(word) > 1:
            self._take_option(word)
        elif (verbs := subparsers(self.parser)) is not None:
            self.is_over = word not in verbs.choices
            if not self.is_over:
                self.parser, self.path = verbs.choices[word], (*self.path, word)
        else:
            if (action := self.argument()) is not None:
                self._note(action, word)
            self.words += 1

    def _take_option(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        action = option(self.parser, flag)
        if action is None:
            return
        if equals or action.nargs == 0:
            self._note(action, value)
        else:
            self.awaits_value = action

    def _note(self, action: argparse.Action, value: str) -> None:
        self.given.setdefault(action.dest, []).append(value)

    def argument(self) -> argparse.Action | None:
        """The one that the next word is for."""
        actions = [action for action in self.parser._actions if not action.option_strings]
        if not actions:
            return None
        if self.words < len(actions):
            return actions[self.words]
        return actions[-1] if actions[-1].nargs == "+" else None


def next_words(parser: argparse.ArgumentParser, before: Sequence[str], current: str) -> Next:
    """What can stand in the place of `current`, after these words."""
    typed = _Typed(parser)
    for word in before:
        typed.take(word)
    if typed.is_over:
        return NOTHING
    if typed.awaits_value is not None:
        return _value(typed, typed.awaits_value, current)
    flag, equals, value = current.partition("=")
    if equals and flag.startswith("--"):
        action = option(typed.parser, flag)
        if action is None or action.nargs == 0:
            return NOTHING
        found = _value(typed, action, value)
        return replace(found, kept=f"{flag}={found.kept}")
    if current.startswith("-"):
        return Next(_flags(typed))
    if (verbs := subparsers(typed.parser)) is not None:
        return Next({choice.dest: choice.help or "" for choice in verbs._choices_actions})
    action = typed.argument()
    return NOTHING if action is None else _value(typed, action, current)


def global_options(before: Sequence[str]) -> dict[str, str | None]:
    """Which cloud is meant, as far as the command line says so."""
    found: dict[str, str | None] = {flag.removeprefix("--"): None for flag, *_ in GLOBAL_OPTIONS}
    for word, after in zip(before, [*before[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        if flag.startswith("--") and name in found:
            found[name] = value if equals else after
    return found


def split_line(line: str, program: str) -> tuple[list[str], str] | None:
    """The words after the program's name, and the one at the cursor, of a line up to there. None: not ours."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
            break
        except ValueError:
            continue
    else:
        return None
    if not closing and (line[-1:].isspace() or not words):
        words.append("")
    if program not in words[:-1]:
        return None
    words = words[words.index(program) + 1 :]
    return words[:-1], words[-1]


def subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, None)


def option(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    return parser._option_string_actions.get(flag)


def _flags(typed: _Typed) -> dict[str, str]:
    """Options that were not given yet, or may be repeated."""
    texts = {flag: text for flag, _, _, text in GLOBAL_OPTIONS}
    found = {}
    for action in typed.parser._actions:
        is_hidden = action.help == argparse.SUPPRESS and typed.path
        is_spent = action.dest in typed.given and not isinstance(action, argparse._AppendAction)
        if action.option_strings and not is_hidden and not is_spent:
            flag = action.option_strings[-1]
            found[flag] = texts.get(flag, action.help or "")
    return found


def _value(typed: _Typed, action: argparse.Action, current: str) -> Next:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    flag = action.option_strings[-1] if action.option_strings else ""
    path = " ".join(typed.path)
    if action.choices is not None:
        return NOTHING.of(map(str, action.choices))
    if flag in ("--columns", "--sort"):
        return _columns(path, flag, current)
    if metavar == "ID" and (flag == "--subnet" or (not flag and path not in _NEW_SUBNET)):
        return Next(names=Names.SUBNET)
    if "FILE" in metavar.split("|"):
        return Next(paths=Paths.FILES)
    found = _BY_FLAG.get(flag) or _BY_METAVAR.get(metavar) or NOTHING
    if found.names is Names.VOLUME:
        return replace(found, of_vm=(typed.given.get("vm") or [""])[-1])
    if flag == "--volume":
        return replace(found, kept=current[: current.rfind(",") + 1])
    if found.names is Names.VM_PATH and ":" in current:
        return NOTHING
    return found


def _columns(path: str, flag: str, current: str) -> Next:
    if flag == "--sort":
        return Next(columns_of=path, kept="-" if current.startswith("-") else "")
    return Next(columns_of=path, kept=current[: current.rfind(",") + 1], goes_on=True)
