"""`atoll vm`: which module has which verb. Imports that of the verb which was typed, and no other."""

from __future__ import annotations

from importlib import import_module

from atoll.cli.arguments import Commands, add_noun

MODULES = {
    "create": "vm_create",
    "list": "vm_list",
    "show": "vm_list",
    "start": "vm_life",
    "stop": "vm_life",
    "reboot": "vm_life",
    "suspend": "vm_suspend",
    "resume": "vm_suspend",
    "destroy": "vm_life",
    "change": "vm_change",
    "become-primary-owner": "vm_change",
    "top": "vm_top",
    "console": "vm_console",
    "vnc": "vm_console",
    "exec": "vm_exec",
    "shell": "vm_exec",
    "ssh": "vm_ssh",
    "cp": "vm_cp",
    "forward": "vm_forward",
    "publish": "vm_publish",
    "unpublish": "vm_publish",
    "log": "vm_log",
    "user-data": "vm_log",
}
"""Each has a function `register(vm)` for all verbs of its own."""


def register(commands: Commands, verb: str | None = None) -> None:
    """All verbs; or, of one that there is, those that its module has."""
    vm = add_noun(commands, "vm", "VMs: what a user runs, whatever runs it.")
    modules = [MODULES[verb]] if verb in MODULES else dict.fromkeys(MODULES.values())
    for module in modules:
        import_module(f"atoll.cli.{module}").register(vm)
