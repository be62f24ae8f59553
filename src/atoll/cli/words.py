"""The words of the command: what people type who come from elsewhere, and what fields are called here. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atoll.errors import AtollError, Malformed

_ELSEWHERE = {
    "rm": "destroy delete remove",
    "delete": "destroy remove",
    "remove": "destroy delete",
    "destroy": "delete",
    "terminate": "destroy",
    "purge": "destroy delete",
    "ls": "list",
    "ps": "list",
    "get": "list show",
    "describe": "show",
    "info": "show",
    "inspect": "show",
    "status": "show",
    "run": "create",
    "launch": "create",
    "new": "create add",
    "add": "create",
    "create": "add",
    "restart": "reboot",
    "halt": "stop",
    "kill": "stop",
    "shutdown": "stop",
    "poweroff": "stop",
    "resize": "grow change",
    "logs": "log",
    "ssh": "ssh shell exec console",
    "shell": "shell exec console",
    "exec": "exec console",
    "attach": "console",
    "edit": "change",
    "set": "change",
    "update": "change",
    "modify": "change",
    "rename": "change",
    "stats": "top",
    "copy": "cp",
    "network": "subnet",
    "networks": "subnet",
    "net": "subnet",
    "expose": "publish",
    "port": "publish",
    "proxy": "publish",
    "port-forward": "forward",
    "--format": "--output",
    "--json": "--output",
    "--mem": "--memory",
    "--ram": "--memory",
    "--cpu": "--cpus",
    "--cores": "--cpus",
    "--vcpus": "--cpus",
    "--label": "--tag",
    "--labels": "--tag",
    "--filter": "--tag --state",
    "--userdata": "--user-data",
    "--cloud-init": "--user-data",
    "--disk": "--volume --root-size",
    "--kind": "--driver",
    "--type": "--driver --machine-type",
    "--driver": "--kind",
    "--hostname": "--name",
    "--wait": "--wait-for",
    "--force": "--yes",
    "--no-confirm": "--yes",
    "--replicas": "--count",
    "--num": "--count",
    "--network": "--subnet",
    "--owner": "--owner-user",
    "--ttl": "--expires",
    "--sort-by": "--sort",
    "--tail": "--follow",
}
"""Words of other commands, and ours for the same, those that are likelier first."""

_VM_VERBS = frozenset(
    {"create", "list", "show", "start", "stop", "reboot", "destroy", "change", "console", "log", "top"}
)
_OF_VMS = _VM_VERBS | {"ssh", "shell", "exec", "ls", "ps", "rm", "run", "launch", "delete", "logs"}
"""Verbs that people type without their noun."""

_FIELDS = {
    "memory_mib": "memory",
    "milli_cpus": "cpus",
    "root_mib": "root-size",
    "size_mib": "size",
    "timeout_s": "timeout",
    "grace_s": "grace",
    "expires_at": "expires",
    "extra_subnets": "extra-subnet",
    "owner_users": "owner-user",
    "owner_groups": "owner-group",
    "ssh_keys": "ssh-key",
    "volumes": "volume",
    "tags": "tag",
    "protected": "protect",
    "kind": "driver",
}
"""Fields of requests, and the options that set them, where these differ by more than a dash."""


def nearest(word: str, known: Collection[str]) -> str | None:
    """What of this somebody meant who typed that."""
    from difflib import get_close_matches

    for ours in _ELSEWHERE.get(word, "").split():
        if ours in known:
            return ours
    found = get_close_matches(word, known, n=1)
    return found[0] if found else None


def unknown(what: str, value: str, known: Iterable[str]) -> Malformed:
    """The error for a word that is none of the known ones, with the nearest of them."""
    choices = list(known)
    near = nearest(value, choices)
    hint = f"did you mean {near}?" if near else f"one of: {', '.join(choices)}"
    return Malformed(f"{what} {value!r}: there is none of that name", hint=hint)


def unknown_noun(word: str, nouns: Collection[str]) -> Malformed:
    """As above; and a verb of VMs that stands alone is one of theirs."""
    if word in _OF_VMS:
        ours = _ELSEWHERE.get(word, word).split()[0] if word not in _VM_VERBS else word
        return Malformed(f"noun {word!r}: there is none of that name", hint=f"did you mean: atoll vm {ours}")
    return unknown("noun", word, nouns)


def in_words_of(error: AtollError, options: Collection[str]) -> AtollError:
    """The same error, its field called by the option that sets it: --memory, not memory_mib."""
    field = error.details.get("field")
    if not isinstance(field, str) or not error.brief.startswith(f"{field} "):
        return error
    option = f"--{_FIELDS.get(field, field).replace('_', '-')}"
    if option in options:
        error.brief = option + error.brief.removeprefix(field)
        error.args = (error.brief,)
    return error
