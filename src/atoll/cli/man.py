"""Pages for man(1), from the parsers that the help is from: `atoll`, `atoll-vm`, `atoll-vm-create` and so on.

Pure but for `write_pages`. `python -m atoll.cli.man [DIR]` writes them, by default to where man looks for those of the
programs in this environment's `bin`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from atoll import __version__
from atoll.cli.arguments import EXIT_STATUSES, GLOBAL_OPTIONS, Parser
from atoll.cli.completing import subparsers

SECTION = "1"
EXAMPLE_WIDTH = 66
"""What 80 columns leave of a line: less the margin, an indent and a backslash."""


def default_directory() -> Path:
    """Beside the `bin` of our environment; where we are in the system's own, what it has for local programs."""
    prefix = Path(sys.prefix if sys.prefix != sys.base_prefix else "/usr/local")
    return prefix / "share" / "man" / f"man{SECTION}"


def write_pages(directory: Path) -> int:
    """Write all pages, and remove those of commands that are no more; how many there are."""
    from atoll.cli.main import NOUNS, parser_for

    made = pages(parser_for(NOUNS), NOUNS)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (directory / f"{name}.{SECTION}").write_text(text)
    for old in directory.glob(f"atoll*.{SECTION}"):
        if old.stem not in made:
            old.unlink()
    return len(made)


def pages(parser: Parser, nouns: Mapping[str, str]) -> dict[str, str]:
    """The text of every page by its name."""
    made = {"atoll": _top_page(nouns)}
    for path, each in _below(parser, ()):
        made["-".join(("atoll", *path))] = _page(path, each)
    return made


def _below(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    verbs = subparsers(parser)
    for name, child in verbs.choices.items() if verbs is not None else ():
        yield (*path, name), child
        yield from _below(child, (*path, name))


def _top_page(nouns: Mapping[str, str]) -> str:
    lines = [
        *_head("atoll", "one small cloud over all of your machines"),
        *_section("SYNOPSIS"),
        _bold("atoll") + r" [\fIoptions\fR] \fINOUN\fR \fIVERB\fR ...",
        *_section("DESCRIPTION"),
        "Each noun has a page of its own, and so has each of its verbs:",
        _reference("atoll-vm", ", ") + _reference("atoll-vm-create", "."),
    ]
    for noun, summary in nouns.items():
        lines += _item(_bold(noun), summary)
    lines += [*_section("OPTIONS"), "They may stand before or after the noun."]
    for flag, metavar, _, text in GLOBAL_OPTIONS:
        lines += _item(f"{_bold(flag)} {_italic(metavar)}", text)
    lines += _item(_flags(["-q", "--quiet"]), "no progress on standard error")
    lines += _item(_flags(["-V", "--version"]), "print the version")
    lines += _section("ENVIRONMENT")
    for flag, _, variable, _ in GLOBAL_OPTIONS:
        lines += _item(_bold(variable), f"as {flag}, where that is not given")
    lines += _section("EXIT STATUS")
    for status, meaning in EXIT_STATUSES.items():
        lines += _item(_bold(str(status)), meaning)
    lines += [*_section("EXAMPLE"), ".EX", "atoll up", "atoll vm create", ".EE"]
    return "\n".join(lines) + "\n"


def _page(path: tuple[str, ...], parser: argparse.ArgumentParser) -> str:
    name = "-".join(("atoll", *path))
    summary = parser.description or ""
    lines = [
        *_head(name, _brief(summary)),
        *_section("SYNOPSIS"),
        _synopsis(path, parser),
        *_section("DESCRIPTION"),
        _text(summary),
    ]
    verbs = subparsers(parser)
    if verbs is not None:
        for choice in verbs._choices_actions:
            lines += _item(_bold(choice.dest), choice.help or "")
    else:
        lines += _arguments(parser)
    lines += _example(parser.epilog or "")
    lines += _section("SEE ALSO")
    others = [f"{name}-{verb}" for verb in verbs.choices] if verbs is not None else []
    if len(path) > 1:
        others = [f"atoll-{path[0]}"]
    lines += [_reference(other, ",") for other in others] + [_reference("atoll")]
    return "\n".join(lines) + "\n"


def _head(name: str, brief: str) -> list[str]:
    title = f'.TH "{name.upper()}" "{SECTION}" "" "atoll {__version__}" "Atoll"'
    # No hyphenation, and no lines stretched to the margin: words of commands stay as they are typed.
    return [title, ".nh", ".ad l", *_section("NAME"), rf"{_text(name)} \- {_text(brief)}"]


def _section(name: str) -> list[str]:
    return [f".SH {name}"]


def _synopsis(path: tuple[str, ...], parser: argparse.ArgumentParser) -> str:
    words = [_bold(" ".join(("atoll", *path))), r"[\fIoptions\fR]"]
    if subparsers(parser) is not None:
        return " ".join([words[0], r"\fIVERB\fR ..."])
    for action in parser._actions:
        if not action.option_strings:
            words.append(_argument(action))
    if getattr(parser, "takes_words", False):
        words.append(r"[\fB\-\-\fR \fICOMMAND\fR ...]")
    return " ".join(words)


def _argument(action: argparse.Action) -> str:
    name = _italic(_metavar(action))
    if action.nargs == "?":
        return f"[{name}]"
    return f"{name} ..." if action.nargs == "+" else name


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if not action.option_strings and action.help:
            lines += _item(_italic(_metavar(action)), action.help)
    lines += _section("OPTIONS")
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            value = "" if action.nargs == 0 else f" {_italic(_metavar(action))}"
            lines += _item(_flags(action.option_strings) + value, _help(action))
    return [*lines, ".PP", "Options that every command has are in", _reference("atoll", ".")]


def _help(action: argparse.Action) -> str:
    text = argparse.HelpFormatter("atoll")._expand_help(action) if action.help else ""
    choices = [str(choice) for choice in action.choices or ()]
    missing = [choice for choice in choices if choice not in text]
    return f"{text}; one of {', '.join(choices)}".removeprefix("; ") if missing else text


def _example(epilog: str) -> list[str]:
    found = re.search(r"^example:\n((?:  .*\n?)+)", epilog)
    if found is None:
        return []
    lines = [part for line in found[1].splitlines() for part in _wrapped(line.strip())]
    return [*_section("EXAMPLE"), ".EX", *lines, ".EE"]


def _wrapped(command: str) -> list[str]:
    """A command that is too long for a line goes on in the next one, as a shell takes it."""
    first, *others = wrap(command, EXAMPLE_WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = [_text(first), *(f"    {_text(other)}" for other in others)]
    return [*(rf"{line} \e" for line in lines[:-1]), lines[-1]]


def _item(label: str, text: str) -> list[str]:
    return [".TP", label, _text(text) or r"\&"]


def _flags(flags: Sequence[str]) -> str:
    return ", ".join(map(_bold, flags))


def _metavar(action: argparse.Action) -> str:
    return action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")


def _brief(summary: str) -> str:
    """The first sentence, as whatis(1) lists it."""
    first = summary.split(". ")[0].rstrip(".")
    word = first.split(" ")[0]
    is_name = len(word) > 1 and not word[1:].islower()
    return first if is_name else first[:1].lower() + first[1:]


def _reference(name: str, after: str = "") -> str:
    return rf"{_bold(name)}({SECTION}){after}"


def _bold(text: str) -> str:
    return rf"\fB{_text(text)}\fR"


def _italic(text: str) -> str:
    return rf"\fI{_text(text)}\fR"


def _text(text: str) -> str:
    """As roff takes it: one line, nothing of it a command, every character as it is typed in a shell."""
    plain = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    plain = plain.replace("'", r"\(aq").replace("`", r"\(ga").replace("^", r"\(ha").replace("~", r"\(ti")
    plain = "".join(char if char.isascii() else rf"\[u{ord(char):04X}]" for char in plain)
    return rf"\&{plain}" if plain.startswith(".") else plain


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else default_directory())
