"""What commands print: tables, field lists, JSON, YAML, names. Pure but for the functions that print.

A noun says how its things look once, as a View; every verb that lists or shows prints through it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs

from atoll.cli.fitting import Need, fit
from atoll.cli.terminal import clipped, columns_of, has_colour, painted, printable, width_of, wrapped
from atoll.cli.words import unknown
from atoll.errors import Malformed

T = TypeVar("T")

FORMATS = ("table", "wide", "json", "yaml", "name")
NOTHING_PRINTED = "none"
"""The format of a change that succeeds, unless somebody asks for another one."""
GAP = "  "


class Column(Struct, Generic[T], frozen=True):
    """One thing to tell of each item."""

    name: str
    text: Callable[[T], str]
    key: Callable[[T], Any] | None = None
    """What --sort compares; the text where there is none."""
    wide: bool = False
    """Only in `-o wide`, when it is asked for, or when one item is shown."""
    detail: bool = False
    """Only when it is asked for, or when one item is shown."""
    rank: int = 0
    """The higher, the sooner it is left out where the terminal is narrow."""
    is_long: bool = False
    """Its text can be shortened there."""
    paint: Callable[[T], str] | None = None
    """The ANSI colour of the cell."""
    min_width: int = 0
    """So that rows printed one by one line up."""


class View(Struct, Generic[T], frozen=True):
    """How a kind of thing looks."""

    name: Callable[[T], str]
    columns: tuple[Column[T], ...]
    wraps: bool = False
    """On a terminal, what the last column says goes on in the next line. Else texts are shortened to fit."""

    def pick(self, names: Sequence[str]) -> tuple[Column[T], ...]:
        """The columns of these names, as headers or people write them: in any case, with - or _."""
        known = {column.name: column for column in self.columns}
        plain = [name.strip().lower().replace("_", "-") for name in names]
        for name, given in zip(plain, names, strict=True):
            if name not in known:
                raise unknown("column", given, known)
        return tuple(known[name] for name in plain)


class Style(Struct, Generic[T], frozen=True):
    """What the user asked for, checked."""

    format: str = "table"
    columns: tuple[Column[T], ...] = ()
    sort: Column[T] | None = None
    descending: bool = False
    header: bool = True
    colour: bool = False
    width: int | None = None
    """The columns of the terminal; None: it goes elsewhere, and nothing is left out or cut."""

    @property
    def is_text(self) -> bool:
        return self.format in ("table", "wide")


def add_show_options(parser: argparse.ArgumentParser, *, quiet: bool = False) -> None:
    """`quiet`: of a verb that changes something, which prints what came of it when it is asked to."""
    choices = ", ".join(FORMATS)
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        default=None if quiet else "table",
        metavar="FORMAT",
        help=f"print what came of it: {choices}" if quiet else choices,
    )
    parser.add_argument("-c", "--columns", metavar="COLUMN,…", help="only these, in this order")
    parser.set_defaults(sort=None, no_header=False)


def add_list_options(parser: argparse.ArgumentParser) -> None:
    add_show_options(parser)
    parser.add_argument("--sort", metavar="COLUMN", help="sort by a column; --sort=-COLUMN: the other way")
    parser.add_argument("--no-header", action="store_true", help="rows only")


def style_of(options: argparse.Namespace, view: View[T]) -> Style[T]:
    """The style that the options ask for; refuses what makes no sense before anything is done."""
    columns = view.pick(options.columns.split(",")) if options.columns else ()
    output = options.output or ("table" if columns else NOTHING_PRINTED)
    if columns and output not in ("table", "wide"):
        raise Malformed(f"-c {options.columns}: {output} output has no columns", hint="leave out -c, or -o")
    sort = view.pick([options.sort.removeprefix("-")])[0] if options.sort else None
    return Style(
        format=output,
        columns=columns,
        sort=sort,
        descending=bool(options.sort) and options.sort.startswith("-"),
        header=not options.no_header,
        colour=has_colour(sys.stdout, os.environ),
        width=columns_of(sys.stdout),
    )


def render_list(view: View[T], items: Iterable[T], style: Style[T]) -> str:
    """All items at once."""
    ordered = list(items)
    if style.sort is not None:
        ordered.sort(key=style.sort.key or style.sort.text, reverse=style.descending)
    if style.format == "json":
        return _json(ordered)
    if style.format == "yaml":
        return _yaml(ordered)
    if style.format == "name":
        return "".join(f"{printable(view.name(item))}\n" for item in ordered)
    if style.format == NOTHING_PRINTED:
        return ""
    columns = style.columns or _table_columns(view, style)
    # Whoever names columns gets them, however wide they are.
    limit = None if style.columns else style.width
    return table(columns, ordered, header=style.header, colour=style.colour, limit=limit, wraps=view.wraps)


def render_one(view: View[T], item: T, style: Style[T]) -> str:
    """One item: all its fields, one per line, or on a terminal in several where it is long."""
    if not style.is_text:
        return _single(view, item, style)
    columns = style.columns or view.columns
    width = max(len(column.name) for column in columns)
    indent = width + len(GAP)
    lines = []
    for column in columns:
        text = printable(column.text(item))
        if style.width is not None:
            text = wrapped(text, style.width - indent, indent)
        label = painted(column.name.ljust(width), "1", style.colour)
        lines.append(f"{label}{GAP}{_cell(column, item, text, 0, style.colour)}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def table(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    *,
    header: bool = True,
    colour: bool = False,
    limit: int | None = None,
    one_by_one: bool = False,
    wraps: bool = False,
) -> str:
    """Aligned text, no wider than the limit. The last column is not padded.

    `one_by_one`: rows that are not known yet are to line up with these.
    `wraps`: the last column goes on in the next line where it is too wide; nothing is left out.
    """
    texts = [[printable(column.text(item)) for column in columns] for item in items]
    needs = [
        Need(
            max(
                [column.min_width * one_by_one, *(width_of(row[at]) for row in texts)]
                + [len(column.name)] * header
            ),
            column.rank,
            column.is_long,
        )
        for at, column in enumerate(columns)
    ]
    widths = [need.width for need in needs] if limit is None or wraps else fit(needs, limit)
    if limit is not None and wraps:
        indent = sum(need.width + len(GAP) for need in needs[:-1])
        texts = [[*row[:-1], wrapped(row[-1], limit - indent, indent)] for row in texts]
    shown = [(at, columns[at], width) for at, width in enumerate(widths) if width is not None]
    rows: list[str] = []
    if header:
        titles = [clipped(column.name.upper(), width).ljust(width) for _, column, width in shown]
        rows.append(painted(GAP.join(titles).rstrip(), "1", colour))
    for item, row in zip(items, texts, strict=True):
        cells = [
            _cell(column, item, row[at] if wraps else clipped(row[at], width), width, colour)
            for at, column, width in shown
        ]
        rows.append(GAP.join(cells).rstrip())
    return "".join(f"{row}\n" for row in rows)


class Results(Generic[T]):
    """Prints items one by one, as they come: one item as one object, several as an array."""

    def __init__(self, view: View[T], style: Style[T], *, several: bool) -> None:
        self._view = view
        self._style = style
        self._several = several
        self._count = 0
        self._columns = self._chosen()

    def _chosen(self) -> list[Column[T]]:
        """Rows to come are not known: all of them have the columns, and as a rule the widths, of the header."""
        columns = [
            structs.replace(column, min_width=max(column.min_width, len(column.name)))
            for column in self._style.columns or _table_columns(self._view, self._style)
        ]
        if self._style.width is None or self._style.columns:
            return columns
        widths = fit([Need(column.min_width, column.rank) for column in columns], self._style.width)
        return [column for column, width in zip(columns, widths, strict=True) if width is not None]

    def add(self, item: T) -> None:
        write(self.text(item))
        self._count += 1

    def close(self) -> None:
        if self._several and self._style.format == "json":
            write("\n]\n" if self._count else "[]\n")

    def text(self, item: T) -> str:
        style = self._style
        if style.is_text:
            columns, limit = self._columns, None if style.columns else style.width
            is_first = style.header and not self._count
            return table(columns, [item], header=is_first, colour=style.colour, limit=limit, one_by_one=True)
        if style.format == NOTHING_PRINTED:
            return ""
        if not self._several or style.format == "name":
            return _single(self._view, item, style)
        if style.format == "yaml":
            return _yaml([item])
        indented = _json(item).rstrip("\n").replace("\n", "\n  ")
        return (",\n  " if self._count else "[\n  ") + indented


def write(text: str) -> None:
    """To standard output, now: the reader may be waiting."""
    sys.stdout.write(text)
    sys.stdout.flush()


def notice(text: str, options: argparse.Namespace) -> None:
    """A remark on standard error, unless the user wants none."""
    if not options.quiet:
        sys.stderr.write(f"{printable(text)}\n")


def shown_json(encoded: bytes) -> str:
    """JSON in which whatever a terminal would obey is an escape; it means the same. Such characters are in strings
    alone, and those below a blank are escapes already."""
    text = encoded.decode()
    if text.isascii():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escaped(char) for char in text)


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def age(seconds: float) -> str:
    """A duration in its largest unit: 3m."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def ip_key(ip: str) -> tuple[int, ...]:
    """Orders addresses by number: 10.0.0.9 before 10.0.0.10."""
    return tuple(int(part) for part in ip.split("."))


def joined(words: Iterable[str]) -> str:
    return ", ".join(words) or "-"


def _table_columns(view: View[T], style: Style[T]) -> tuple[Column[T], ...]:
    return tuple(
        column for column in view.columns if not column.detail and (style.format == "wide" or not column.wide)
    )


def _single(view: View[T], item: T, style: Style[T]) -> str:
    if style.format == NOTHING_PRINTED:
        return ""
    if style.format == "json":
        return _json(item)
    return _yaml(item) if style.format == "yaml" else f"{view.name(item)}\n"


def _json(value: Any) -> str:
    import msgspec

    return shown_json(msgspec.json.format(msgspec.json.encode(value), indent=2)) + "\n"


def _yaml(value: Any) -> str:
    import msgspec

    from atoll.cli.yamltext import to_yaml

    return to_yaml(msgspec.to_builtins(value))


def _cell(column: Column[T], item: T, text: str, width: int, colour: bool) -> str:
    blanks = " " * max(0, width - width_of(text))
    return painted(text, column.paint(item) if column.paint else "", colour) + blanks
