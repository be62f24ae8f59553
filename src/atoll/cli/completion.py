"""`atoll completion`: scripts that have a shell ask `atoll __complete` what can come next.

The answer is one line with what the shell has to know (`files`, `directories`, `goes-on`), then one line a word, with
what it means behind a tab. Effects: prints; `completion_names` asks the node.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.completing import Names, Next, global_options, next_words, split_line
from atoll.errors import AtollError

HIDDEN = "__complete"
"""How the scripts call the command. No noun: nobody types it."""


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
    from atoll.cli.output import write

    write(SCRIPTS[options.verb])


def complete(argv: Sequence[str]) -> str:
    """The answer to a shell: `bash PROGRAM WORDBREAKS LINE`, or `words WORD…` with the one at the cursor last."""
    form, *rest = argv
    if form == "bash":
        program, breaks, line = rest
        split = split_line(line, program)
        return "" if split is None else answer(*split, breaks=breaks)
    return answer(rest[:-1], rest[-1])


def answer(before: Sequence[str], current: str, *, breaks: str = "") -> str:
    """`breaks`: where the shell begins a new word of its own, so that only what follows is its to complete."""
    from atoll.cli.arguments import as_help

    before = [word for word in as_help([*before]) if word != "--help"]
    found = _next(before, current)
    in_capitals = current.removeprefix(found.kept).isupper()
    words = dict(found.words) | _columns(found, in_capitals=in_capitals) | _names(found, before)
    matching = {f"{found.kept}{word}": text for word, text in words.items()}
    place = max((current.rfind(char) for char in breaks), default=-1) + 1
    lines = [
        f"{word[place:]}\t{' '.join(text.split())}".rstrip("\t")
        for word, text in matching.items()
        if word.startswith(current)
    ]
    told = [*([str(found.paths)] if found.paths else []), *(["goes-on"] if found.goes_on else [])]
    return "\n".join([" ".join(told), *lines]) + "\n"


def _next(before: Sequence[str], current: str) -> Next:
    from atoll.cli.arguments import GLOBAL_OPTIONS, noun_of
    from atoll.cli.main import NOUNS, parser_for

    try:
        noun, _ = noun_of(before, NOUNS)
    except AtollError:
        return Next()
    if noun is None:
        takes_value = bool(before) and before[-1] in {flag for flag, *_ in GLOBAL_OPTIONS}
        if takes_value or current.startswith("-"):
            return next_words(parser_for(()), before, current)
        return Next(NOUNS)
    # One verb's parser is quicker made than all of them. Before there is a verb, they are what is asked for.
    after = [word for word in before[list(before).index(noun) + 1 :] if not word.startswith("-")]
    return next_words(parser_for([noun], after[0] if after else None), before, current)


def _names(found: Next, before: Sequence[str]) -> dict[str, str]:
    if found.names is None:
        return {}
    if found.names is Names.REMOTE:
        from atoll.cli import remotes

        return dict.fromkeys(remotes.names(), "")
    from atoll.cli.completion_names import known_to, named

    given = {
        name: value and os.path.expandvars(f"$HOME{value[1:]}" if value.startswith("~/") else value)
        for name, value in global_options(before).items()
    }
    return named(found, known_to(argparse.Namespace(**given)))


_VIEWS: Mapping[str, str] = {
    "audit": "audit:AUDIT_VIEW",
    "ca": "ca:certificate_view",
    "ca list": "ca:issued_view",
    "doctor": "doctor:VIEW",
    "event list": "event:HISTORY_VIEW",
    "event stream": "event:EVENT_VIEW",
    "image": "image:IMAGE_VIEW",
    "lease": "lease:LEASE_VIEW",
    "node": "node:NODE_VIEW",
    "quota": "quota:ROW_VIEW",
    "quota list": "quota:QUOTA_VIEW",
    "remote": "remote:REMOTE_VIEW",
    "remote invitations": "remote_invite:INVITATION_VIEW",
    "service": "service:VIEW",
    "share": "share:SHARE_VIEW",
    "status": "status:VIEW",
    "subnet": "subnet:POOL_VIEW",
    "vm": "vm_view:vm_view",
    "vm publish": "vm_publish:PUBLISHED_VIEW",
    "vm top": "vm_top:TOP_VIEW",
    "volume": "volume:VOLUME_VIEW",
}
"""Where the columns are of what a command shows: of the verb, else of the noun. A test holds it against them."""


def _columns(found: Next, *, in_capitals: bool) -> dict[str, str]:
    if not found.columns_of:
        return {}
    place = _VIEWS.get(found.columns_of) or _VIEWS.get(found.columns_of.split()[0])
    if place is None:
        return {}
    module, _, name = place.partition(":")
    view = getattr(import_module(f"atoll.cli.{module}"), name)
    if callable(view):
        from atoll.system.clock import now

        view = view(now())
    taken = found.kept.split("=")[-1].lower().split(",")
    names = [column.name for column in view.columns if column.name not in taken]
    return dict.fromkeys((name.upper() for name in names) if in_capitals else names, "")


def answer_shell(argv: Sequence[str]) -> int:
    """Whatever goes wrong, a prompt stays as it is."""
    try:
        sys.stdout.write(complete(argv))
        sys.stdout.flush()
    except Exception:
        return 1
    return 0


_BASH = """\
# atoll completion for bash
_atoll() {
    local answer told word program="${COMP_WORDS[0]}"
    COMPREPLY=()
    answer=$("${program/#\\~/$HOME}" HIDDEN bash "$program" "$COMP_WORDBREAKS" \\
        "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null) || return 0
    told=" ${answer%%$'\\n'*} "
    while IFS=$'\\t' read -r word _; do
        [ -z "$word" ] || COMPREPLY+=("$word")
    done <<<"${answer#"${answer%%$'\\n'*}"}"
    [[ $told != *" goes-on "* ]] || compopt -o nospace 2>/dev/null
    if [[ $told == *" directories "* ]]; then
        compopt -o dirnames 2>/dev/null
    elif [[ $told == *" files "* && ${#COMPREPLY[@]} -eq 0 ]]; then
        compopt +o nospace -o default 2>/dev/null
    elif [[ $told == *" files "* ]]; then
        while IFS= read -r word; do
            COMPREPLY+=("$word")
        done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    fi
}
complete -F _atoll atoll
"""

_ZSH = """\
#compdef atoll
_atoll() {
    local line told tab=$'\\t' ret=1
    local -a lines pairs space
    lines=("${(@f)$("${(Q)words[1]/#\\~/$HOME}" HIDDEN words \\
        "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
    told=" ${lines[1]} "
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] || continue
        if [[ $line == *$tab* ]]; then
            pairs+=("${${line%%$tab*}//:/\\\\:}:${line#*$tab}")
        else
            pairs+=("${line//:/\\\\:}")
        fi
    done
    [[ $told != *" goes-on "* ]] || space=(-S '')
    (( ! $#pairs )) || _describe -t words atoll pairs "${(@)space}" && ret=0
    if [[ $told == *" files "* || $told == *" directories "* ]]; then
        [[ $PREFIX != --*=* ]] || compset -P '*='
        if [[ $told == *" directories "* ]]; then _files -/ && ret=0; else _files && ret=0; fi
    fi
    return ret
}
if [[ "${funcstack[1]}" == _atoll ]]; then _atoll "$@"; else compdef _atoll atoll; fi
"""

_FISH = """\
# atoll completion for fish
function __atoll_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l answer (command atoll HIDDEN words $typed[2..-1] "$current" 2>/dev/null </dev/null)
    or return
    printf '%s\\n' $answer[2..-1]
    set -l kept (string match -r -- '^--[^=]*=' "$current")
    set -l rest (string replace -r -- '^--[^=]*=' '' "$current")
    if string match -q -- '*files*' "$answer[1]"
        for path in (__fish_complete_path "$rest")
            printf '%s%s\\n' "$kept" "$path"
        end
    else if string match -q -- '*directories*' "$answer[1]"
        for path in (__fish_complete_directories "$rest")
            printf '%s%s\\n' "$kept" "$path"
        end
    end
end
complete -c atoll -k -f -a '(__atoll_complete)'
"""

SCRIPTS: Mapping[str, str] = {
    shell: script.replace("HIDDEN", HIDDEN)
    for shell, script in (("bash", _BASH), ("zsh", _ZSH), ("fish", _FISH))
}
