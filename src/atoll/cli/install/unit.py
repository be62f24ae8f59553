"""The systemd units of agents, as text: that of an installed node, and that of a cloud of `atoll up`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from atoll.cli.cloud.agent import DROPPED

NODE = """\
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
{agent}
"""

CLOUD = """\
# Written by `atoll service install`. Settings of your own belong into a drop-in, which `systemctl edit` makes.
[Unit]
Description=Atoll: the cloud in {directory}
Wants=network-online.target
After=network-online.target docker.service
RequiresMountsFor={mount}
# Tried for ever: what was in the way may be gone by then.
StartLimitIntervalSec=0

[Service]
# It is started when the API answers. The first start after an upgrade may make the image anew.
Type=notify
NotifyAccess=main
TimeoutStartSec=15min
{environment}ExecStart={command}
# `atoll down` is meant: it ends well, and is started again at the next boot or by `systemctl start`.
Restart=on-failure
RestartSec=5
{agent}
"""

AGENT = """\
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
WantedBy=multi-user.target"""


def text(python: Path, config: Path) -> str:
    """Of an installed node."""
    return NODE.format(command=_command((python, "-m", "atoll.hypervisor", config)), agent=_agent())


def of_cloud(python: Path, directory: Path, environment: Mapping[str, str]) -> str:
    """Of a cloud, whose settings are in its directory. `environment`: what else the command is to be told."""
    words = (python, "-m", "atoll.cli", "--dir", directory, "up", "--foreground", "--quiet")
    variables = (f"Environment={_setting(f'{name}={value}')}\n" for name, value in environment.items())
    return CLOUD.format(
        directory=str(directory).replace("%", "%%"),
        mount=_setting(str(directory)),
        environment="".join(variables),
        command=_command(words),
        agent=_agent(),
    )


def quoted(word: str) -> str:
    """A word of a command line, as systemd reads it."""
    return _setting(word.replace("$", "$$"))


def _setting(word: str) -> str:
    """A word of a setting, as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(char.isspace() or char in "\"'\\;" for char in word) else escaped


def _command(words: Sequence[object]) -> str:
    return " ".join(quoted(str(word)) for word in words)


def _agent() -> str:
    return AGENT.format(dropped=" ".join(_capabilities(DROPPED)))


def _capabilities(names: Iterable[str]) -> list[str]:
    return [f"CAP_{name.upper()}" for name in names]
