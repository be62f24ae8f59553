"""All settings of a node, told from the types that hold them. Pure, but for `main`, which prints.

`python -m atoll.hypervisor.settings page` prints docs/configuration.md; `… template` prints a file in which every
setting is explained, with the values that it reads as JSON from standard input.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, structs

from atoll.hypervisor.config import Config

WIDTH = 100

HEAD = """\
# Configuration of a node

Written by `make reference`. The agent of a node reads one file when it starts: `/etc/atoll/node.toml` on a node that
`atoll node install` made, where every setting stands with its explanation. After a change, check it and have the agent
take it up; VMs run on:

    atoll node check-config /etc/atoll/node.toml
    atoll node install

A cloud that `atoll up` made keeps settings in `settings.toml` in its directory (`/var/lib/atoll`). That file is yours:
`atoll up` reads it, and never writes it.

A key with a dot is a setting of a table: `overcommit.cpus` stands under `[overcommit]`.
"""


class Setting(Struct, frozen=True):
    """One setting, or the head of a table of them.

    `default` is TOML; None: there is none, and `required` says whether a value must be given.
    """

    key: str
    kind: str
    text: str
    default: str | None = None
    required: bool = False

    @property
    def is_table(self) -> bool:
        return self.kind in ("table", "tables")

    @property
    def head(self) -> str:
        """The line that begins it, where it is a table, or one of several."""
        return f"[[{self.key}]]" if self.kind == "tables" else f"[{self.key}]"

    @property
    def is_dictionary(self) -> bool:
        """A table whose keys are the user's own names."""
        return self.kind.startswith("table of")


def settings(kind: type[Struct] = Config, table: str = "") -> list[Setting]:
    """All of them in the order of a file: what stands in no table, then one table after the other."""
    texts, types_ = _docstrings(kind), typing.get_type_hints(kind)
    plain: list[Setting] = []
    tables: list[Setting] = []
    for field in structs.fields(kind):
        key = f"{table}.{field.name}" if table else field.name
        text = " ".join(texts.get(field.name, "").split())
        inner, several = _struct_in(types_[field.name]), _struct_in_tuple(types_[field.name])
        if found := inner or several:
            about = text or (inspect.getdoc(found) or "").partition("\n")[0]
            kind_ = "table" if inner else "tables"
            tables += [Setting(key, kind_, about, required=field.required), *settings(found, key)]
            continue
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        one = Setting(key, _words(types_[field.name]), text, _shown(default), field.required)
        (tables if one.is_dictionary else plain).append(one)
    return plain + tables


def page() -> str:
    """docs/configuration.md."""
    parts = [HEAD]
    for one in settings():
        title = one.head if one.is_table or one.is_dictionary else one.key
        parts.append("\n\n".join(filter(None, (f"## `{title}`", one.text, _summary(one)))) + "\n")
    return "\n".join(parts)


def _summary(one: Setting) -> str:
    if one.required:
        return f"*{one.kind}, required*"
    if one.default is None or one.is_dictionary:
        return f"*{one.kind}, none by default*" if not one.is_table else ""
    return f"*{one.kind}, default `{one.default}`*"


def template(values: Mapping[str, Any]) -> str:
    """A TOML file with these values, in which every setting is explained and the others stand with their defaults."""
    lines = ["# The settings of this node. A line that begins with #: is the default.", ""]
    for one in settings():
        value = _value(values, one.key)
        lines += [f"# {line}" for line in textwrap.wrap(one.text, WIDTH - 2)]
        lines += [*_lines(one, value), *([] if one.is_table else [""])]
    return "\n".join(lines)


def _lines(one: Setting, value: Any) -> list[str]:
    if one.kind == "tables":
        each = ([one.head, *(f"{key} = {_toml(item[key])}" for key in item)] for item in value or ())
        return [line for lines in each for line in lines] or [f"#: {one.head}"]
    if one.is_table or one.is_dictionary:
        pairs = [f"{_toml(key)} = {_toml(each)}" for key, each in (value or {}).items() if one.is_dictionary]
        return [one.head if value else f"#: {one.head}", *pairs]
    name = one.key.rpartition(".")[2]
    if value is not None:
        return [f"{name} = {_toml(value)}"]
    return [f"#: {name} = {'...' if one.default is None else one.default}"]


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)


def _docstrings(kind: type[Struct]) -> dict[str, str]:
    """What stands below each field of a type, in its source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[field.target.id] = text
    return found


def _struct_in(kind: Any) -> type[Struct] | None:
    """The struct that a field holds, if it holds one: it is a table of its own."""
    for one in _members(kind):
        if isinstance(one, type) and issubclass(one, Struct):
            return one
    return None


def _struct_in_tuple(kind: Any) -> type[Struct] | None:
    """The struct that a field holds any number of: each is a table of its own."""
    return _struct_in(typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else None


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _words(kind: Any) -> str:
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "absolute path"}
    (one,) = (each for each in _members(kind) if each is not type(None))
    if typing.get_origin(one) is tuple:
        return f"list of {_words(typing.get_args(one)[0])}"
    if typing.get_origin(one) is dict:
        return f"table of name = {_words(typing.get_args(one)[1])}"
    return names[one]


def _shown(default: Any) -> str | None:
    if default is NODEFAULT or default is None:
        return None
    return _toml(msgspec.to_builtins(default, enc_hook=str))


def main() -> None:
    if sys.argv[1:] == ["template"]:
        sys.stdout.write(template(json.load(sys.stdin)))
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
