"""`atoll completion`: scripts that complete nouns, verbs, options, choices, files and names of VMs.

Pure but for printing: the words come from the parsers themselves, so they cannot be out of date. Names of
VMs come from `atoll vm list -o name`, kept for a few seconds under XDG_CACHE_HOME/atoll.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote

from atoll.cli.arguments import GLOBAL_OPTIONS, VM_METAVAR, Commands, Parser, add_noun, add_verb
from atoll.cli.output import write

CACHE_S = 5
FILE_METAVARS = frozenset({"FILE", "DIR"})


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    text: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What can come next after these words."""

    path: str
    words: Mapping[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    takes_vms: bool = False

    @property
    def flags(self) -> list[str]:
        return [flag for option in self.options for flag in option.flags]


def register(commands: Commands) -> None:
    completion = add_noun(commands, "completion", "Completion for your shell.")
    for shell, example in (
        ("bash", "source <(atoll completion bash)"),
        ("zsh", "source <(atoll completion zsh)"),
        ("fish", "atoll completion fish | source"),
    ):
        summary = f"Print the completion script for {shell}."
        add_verb(completion, shell, run, summary=summary, example=example)


def run(options: argparse.Namespace) -> None:
    from atoll.cli.main import NOUNS, parser_for

    write(script(options.verb, parser_for(NOUNS)))


def script(shell: str, parser: Parser) -> str:
    """The script for a shell: bash, zsh or fish."""
    scripts: dict[str, Callable[[list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return scripts[shell](list(places(parser)))


def places(parser: argparse.ArgumentParser, path: str = "") -> Iterator[Place]:
    """Every place in the tree of commands, from the top."""
    words: dict[str, str] = {}
    options: list[Option] = []
    takes_vms = False
    below: list[Place] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                words[name] = summaries.get(name, "")
                below += places(child, f"{path} {name}".strip())
        elif action.option_strings:
            # Every parser takes the global options; they are completed everywhere, and listed once.
            if not path or action.help != argparse.SUPPRESS:
                options.append(_option(action))
        elif action.metavar == VM_METAVAR:
            takes_vms = True
        elif action.choices is not None:
            words |= {str(choice): "" for choice in action.choices}
    yield Place(path, words, tuple(options), takes_vms)
    yield from below


def _option(action: argparse.Action) -> Option:
    hidden = {flag: text for flag, _, _, text in GLOBAL_OPTIONS}
    return Option(
        flags=tuple(action.option_strings),
        text=hidden.get(action.option_strings[0], action.help or ""),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
        is_file=action.metavar in FILE_METAVARS,
    )


def _flags_with_value(found: list[Place]) -> list[str]:
    flags = {
        flag for place in found for option in place.options if option.takes_value for flag in option.flags
    }
    return sorted(flags)


_VMS = f"""\
_atoll_vms() {{
    local dir="${{XDG_CACHE_HOME:-$HOME/.cache}}/atoll" file
    file="$dir/vms-$(printf %s "${{ATOLL_NODE:-}} ${{ATOLL_DIR:-}}" | cksum | cut -d' ' -f1)"
    if [ -z "$(find "$file" -newermt '-{CACHE_S} seconds' 2>/dev/null)" ]; then
        mkdir -p -m 700 "$dir"
        timeout 3 atoll vm list -o name >"$file.$$" 2>/dev/null
        mv -f "$file.$$" "$file"
    fi
    cat "$file"
}}
"""


def _cases(found: list[Place], reply: Callable[[str], str], files: str, vms: str) -> list[str]:
    """The decisions that bash and zsh share, in the syntax that both have."""
    lines = ['    case "$place:$prev" in']
    for place in found:
        for option in place.options:
            if option.takes_value:
                at = quote(place.path) if place.path else "*"
                patterns = "|".join(f"{at}:{flag}" for flag in option.flags)
                answer = reply(" ".join(option.choices)) if option.choices else ":"
                lines.append(f"        ({patterns}) {files if option.is_file else answer}; return ;;")
    lines += ["    esac", '    case "$place:$cur" in']
    for place in found:
        lines.append(f"        ({quote(place.path)}:-*) {reply(' '.join(place.flags))} ;;")
        words = reply(" ".join(place.words)) if place.words else ":"
        lines.append(f"        ({quote(place.path)}:*) {vms if place.takes_vms else words} ;;")
    return [*lines, "    esac"]


def _walk(found: list[Place], first: int, last: str, array: str) -> list[str]:
    """Shell lines that set `place` to the noun and verb before the cursor."""
    known = "|".join(quote(place.path) for place in found if place.path)
    return [
        f"    for ((i = {first}; i < {last}; i++)); do",
        f"        word=${{{array}[i]}}",
        '        case "$word" in',
        f"            ({'|'.join(_flags_with_value(found))}) ((i += 1)); continue ;;",
        "        esac",
        '        case "${place:+$place }$word" in',
        f'            ({known}) place="${{place:+$place }}$word" ;;',
        "        esac",
        "    done",
    ]


def _bash(found: list[Place]) -> str:
    def reply(words: str) -> str:
        return f'COMPREPLY+=($(compgen -W {quote(words)} -- "$cur"))'

    files = 'COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null'
    vms = 'COMPREPLY+=($(compgen -W "$(_atoll_vms)" -- "$cur"))'
    lines = [
        "# atoll completion for bash",
        _VMS + "_atoll() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" place="" word i',
        "    COMPREPLY=()",
        *_walk(found, 1, "COMP_CWORD", "COMP_WORDS"),
        *_cases(found, reply, files, vms),
        "}",
        "complete -F _atoll atoll",
    ]
    return "\n".join(lines) + "\n"


def _zsh(found: list[Place]) -> str:
    lines = [
        "#compdef atoll",
        _VMS + "_atoll() {",
        '    local cur="${words[CURRENT]}" prev="${words[CURRENT-1]}" place="" word',
        "    integer i",
        *_walk(found, 2, "CURRENT", "words"),
        *_cases(found, lambda words: f"compadd -- {words}", "_files", 'compadd -- ${(f)"$(_atoll_vms)"}'),
        "}",
        'if [[ "${funcstack[1]}" == _atoll ]]; then _atoll "$@"; else compdef _atoll atoll; fi',
    ]
    return "\n".join(lines) + "\n"


_FISH_FUNCTIONS = """\
# atoll completion for fish
function __atoll_vms
    set -l dir $HOME/.cache/atoll
    set -q XDG_CACHE_HOME; and set dir $XDG_CACHE_HOME/atoll
    set -l file $dir/vms-(printf %s "$ATOLL_NODE $ATOLL_DIR" | cksum | cut -d' ' -f1)
    if not count (find $file -newermt '-{cache} seconds' 2>/dev/null) >/dev/null
        mkdir -p -m 700 $dir
        timeout 3 atoll vm list -o name >$file.new 2>/dev/null
        mv -f $file.new $file
    end
    cat $file
end
function __atoll_at
    set -l place ''
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word {flags}
            set skip 1
        else
            set -l next (string trim -- "$place $word")
            contains -- $next {known}; and set place $next
        end
    end
    test "$place" = "$argv"
end
complete -c atoll -f
"""


def _fish(found: list[Place]) -> str:
    flags = " ".join(_flags_with_value(found))
    known = " ".join(quote(place.path) for place in found if place.path)
    text = _FISH_FUNCTIONS.format(cache=CACHE_S, flags=flags, known=known)
    return text + "".join(f"{line}\n" for place in found for line in _fish_lines(place))


def _fish_lines(place: Place) -> Iterator[str]:
    start = f"complete -c atoll -n {quote(f'__atoll_at {place.path}'.strip())}"
    anywhere = start if place.path else "complete -c atoll"
    for word, summary in place.words.items():
        yield f"{start} -a {quote(word)} -d {_fish_quote(summary)}"
    if place.takes_vms:
        yield f"{start} -a '(__atoll_vms)' -d VM"
    for option in place.options:
        flags = " ".join(
            f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
        )
        value = ""
        if option.is_file:
            value = " -r -F"
        elif option.takes_value:
            value = f" -x -a {_fish_quote(' '.join(option.choices))}"
        yield f"{anywhere} {flags}{value} -d {_fish_quote(option.text)}"


def _fish_quote(text: str) -> str:
    # Within single quotes fish, unlike other shells, takes \' and \\.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
