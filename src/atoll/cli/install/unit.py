"""The systemd unit of an agent, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from atoll.cli.cloud.agent import DROPPED

TEMPLATE = """\
# Written by `atoll node install`. Settings of your own belong into: systemctl edit atoll-hypervisor
[Unit]
Description=Atoll Hypervisor: runs the VMs of this node
Wants=network-online.target
After=network-online.target docker.service
# Tried for ever: a node without its agent cannot be mended from afar.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=always
RestartSec=1
# VMs are no part of this service: only the agent itself is ended, and its VMs run on. Their control groups are
# below /atoll, outside of this unit.
KillMode=process
TimeoutStopSec=30
LimitNOFILE=1048576
TasksMax=infinity
# When memory runs out, what the agent started may die, and the agent goes on.
OOMPolicy=continue
UMask=0077
# What no part of an agent needs. Nothing here may give it mounts of its own (ProtectSystem, PrivateTmp and their
# like): the network namespaces that it makes would be seen by nobody else. Nothing may filter system calls either:
# guests inherit it.
CapabilityBoundingSet=~{dropped}

[Install]
WantedBy=multi-user.target
"""


def text(python: Path, config: Path) -> str:
    command = " ".join(map(quoted, (str(python), "-m", "atoll.hypervisor", str(config))))
    return TEMPLATE.format(command=command, dropped=" ".join(_capabilities(DROPPED)))


def quoted(word: str) -> str:
    """A word of a command line, as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(char.isspace() or char in "\"'\\;" for char in word) else escaped


def _capabilities(names: Iterable[str]) -> list[str]:
    return [f"CAP_{name.upper()}" for name in names]
