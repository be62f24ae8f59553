"""Schedules of faults: agents with what strikes in them and what they are asked for, drawn by hypothesis. Pure.

A schedule is plain data. One that fails is shrunk to its smallest form and printed as it can be pasted:

    Schedule(Agent("create start", "start.launched:1:ERROR>halt.killed:1"), Agent(meanwhile="host reboots"))

Words name no VM: each is about the first that it fits, so that a shorter schedule still means something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from atoll.system.steps import STEPS

FULL_DISK = ("write.begin", "write.written")
"""Where a disk can be found full. Elsewhere an error says so."""
UNFAILING = frozenset(name for name in STEPS if name.startswith(("recovery.", "ids.")))
"""Steps between whole pieces of work, where nothing is being done that could fail; and those without which an agent
does not start at all."""

KILL, TERM, CUT, ERROR, ENOSPC = "", "TERM", "CUT", "ERROR", "ENOSPC"
"""What strikes. `CUT`: all clients lose their connections. Only where agents are not processes of their own."""


def _of(*families: str) -> frozenset[str]:
    return frozenset(name for name in STEPS if name.partition(".")[0] in families)


OF_COMMANDS = _of("install", "uninstall", "switches")
"""Steps of commands: struck in tests/host/install, and in tests/host/attacks/test_nat.py."""
OF_CONTAINERS = _of("docker") | {"change.grown", "change.shrunk"}
"""Struck in tests/host/faults/test_containers.py."""
OF_ISSUERS = _of("ssh") | {"credentials.issued", "invitation.taken"}
"""Struck in tests/services/hypervisor: test_background_faults.py, test_joining.py and test_ssh.py."""
OF_UPLINKS = frozenset({"subnet.routed"})
"""Struck in tests/host/network/test_outside.py."""
OF_IMAGES = _of("bulk", "object", "tree")
"""Of objects and trees: struck in tests/host/images/test_object_faults.py."""
OF_PUBLISHER = _of("publisher")
"""Of the process that carries connections: struck where agents are processes too."""
OF_SIM = STEPS - OF_COMMANDS - OF_CONTAINERS - OF_ISSUERS - OF_UPLINKS - OF_IMAGES - _of("qemu")
"""Those that an agent with simulated machines passes."""

WORDS = (
    *("create", "create-disk", "create-data", "create-role", "create-restarting", "twin"),
    *("stop", "start", "reboot", "destroy", "change", "rewrite", "move", "add-volume", "delete-volume"),
    *("publish", "unpublish"),
    *("grow-volume", "suspend", "suspend-to-disk", "resume"),
    *("give", "add-spare", "change-spare", "empty-spare", "remove-spare", "set-quota", "change-node"),
    *("allow-share", "deny-share"),
)
"""What agents are asked for. The spare subnet comes, is changed and goes; no VM is in it."""
ENDED, REBOOTED, NO_TEMPLATES = "guests end", "host reboots", "templates go"
IDS_LOST, IDS_LEFT, NEW_IMAGES = "the register of ids is lost", "ids are left over", "images are replaced"
"""What may happen while there is no agent."""
UNDOING = _of("halt", "discard", "write")
"""Steps that may be passed once something has failed."""


@dataclass(frozen=True)
class Agent:
    """One agent: what it is asked for in turn, the faults in it, and what happened before it came."""

    asks: str = ""
    faults: str = ""
    meanwhile: str = ""
    config: str = ""
    """`pool`: it has a hot pool; `few`: it keeps one template at most, `cold`: none."""

    def __repr__(self) -> str:
        told = [repr(value) if value else "" for value in (self.asks, self.faults)]
        named = [f"{name}={value!r}" for name in ("meanwhile", "config") if (value := getattr(self, name))]
        positional = [text or "''" for text in told]
        while positional and positional[-1] == "''":
            positional.pop()
        return f"Agent({', '.join([*positional, *named])})"


class Schedule:
    """Agents that follow each other on one node."""

    def __init__(self, *agents: Agent) -> None:
        self.agents = agents

    def __repr__(self) -> str:
        return f"Schedule({', '.join(map(repr, self.agents))})"


_ROADS: dict[str, Agent] = {
    "write": Agent("create-data"),
    "write.spared": Agent("stop"),
    "create": Agent("create-data"),
    "create.credential": Agent("create-role"),
    "launch": Agent("create"),
    "start": Agent("start"),
    "stop": Agent("stop"),
    "halt": Agent("stop"),
    "halt.discarded": Agent("destroy"),
    "destroy": Agent("destroy"),
    "discard": Agent("destroy"),
    "change": Agent("rewrite"),
    "move": Agent("move"),
    "volume": Agent("add-volume delete-volume"),
    "publish": Agent("publish unpublish"),
    "publish.pointed": Agent("publish stop fault"),
    "publisher": Agent("publish", meanwhile=REBOOTED),
    "volume.grows": Agent("grow-volume"),
    "volume.grown": Agent("grow-volume"),
    "template": Agent("twin template", meanwhile=NO_TEMPLATES),
    "template.dropped": Agent("twin template large-twin fault", meanwhile=NO_TEMPLATES, config="few"),
    "fork": Agent("twin template twin"),
    "handover": Agent("twin member twin", config="pool"),
    "pool": Agent("twin member", config="pool"),
    "qemu": Agent("create stop", config="cold"),
    "qemu.folder-served": Agent("allow-share create-shared stop", config="cold"),
    "suspend": Agent("suspend-to-disk"),
    "resume": Agent("suspend resume"),
    "restore": Agent("suspend-to-disk resume"),
    "exit": Agent(meanwhile=ENDED),
    "duty": Agent(meanwhile=ENDED),
    "relaunch": Agent(meanwhile=REBOOTED),
    "trash": Agent(),
    "subnet": Agent("add-spare change-spare remove-spare"),
    "addresses": Agent("add-spare empty-spare"),
    "quota": Agent("set-quota"),
    "node": Agent("change-node"),
    "share": Agent("allow-share deny-share"),
    "ids": Agent(meanwhile=IDS_LOST),
    "ids.given-back": Agent(meanwhile=IDS_LEFT),
    "image": Agent("create", meanwhile=NEW_IMAGES),
    "recovery": Agent(),
}
_BEFORE: dict[str, Agent] = {
    "write.spared": Agent("create"),
    "exit": Agent("create"),
    "duty": Agent("create-restarting"),
    "relaunch": Agent("create"),
    "recovery.one": Agent("create"),
    "recovery.undone": Agent("create", "create.launched:1"),
    "trash": Agent("destroy", "discard.renamed:1"),
    "publish": Agent("create unpublish"),
    "publisher": Agent("create unpublish"),
}


_FIRST = {"write.spared": "write.begin:1:ENOSPC>"}
"""Steps that are passed once another fault has struck."""


def road(step: str, kind: str) -> tuple[Agent, ...]:
    """Agents of which the last one is struck at this step for sure."""
    family = step.partition(".")[0]
    before = _BEFORE.get(step, _BEFORE.get(family))
    last = _ROADS.get(step, _ROADS[family])
    return (*filter(None, (before,)), replace(last, faults=_FIRST.get(step, "") + written(step, 1, kind)))


_UNDONE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("create.launched", "create-disk", ("write.renamed", "halt.killed", "halt.unplugged", "halt.released")),
    ("create.committed", "create-disk", ("halt.killed", "discard.renamed", "discard.removed")),
    ("launch.started", "create", ("halt.killed", "discard.renamed")),
    ("start.launched", "start", ("halt.killed", "halt.unplugged", "halt.released", "write.renamed")),
    ("volume.claimed", "add-volume", ("write.renamed",)),
    ("suspend.saved", "suspend-to-disk", ("write.renamed",)),
    ("restore.restored", "suspend-to-disk resume", ("halt.killed", "halt.released", "write.renamed")),
    ("move.carried", "move", ("write.renamed",)),
)
"""What fails, what is asked for so that it does, and the steps that are passed while it is undone."""


def in_undo(kind: str) -> Iterator[Agent]:
    """Agents in which something fails, and another fault strikes while that is undone."""
    for failing, asks, undoing in _UNDONE:
        for step in undoing:
            yield Agent(asks, f"{written(failing, 1, ERROR)}>{written(step, 1, kind)}")


def on_full_disks() -> Iterator[Agent]:
    """Agents that find the disk full, with what they were asked for."""
    for asks in ("create-data", "start", "change", "move", "add-volume", "destroy", "give"):
        for nth, step in enumerate(FULL_DISK, 1):
            yield Agent(asks, written(step, nth, ENOSPC))


@st.composite
def schedules(draw: DrawFn, kinds: Sequence[str], most: int = 3) -> Schedule:
    """Any that there may be, with faults of these kinds: so many of them strike, one or two at a time."""
    parts = draw(st.lists(_parts(tuple(kinds)), min_size=1, max_size=most))
    return Schedule(*(agent for part in parts for agent in part))


@st.composite
def _parts(draw: DrawFn, kinds: tuple[str, ...]) -> tuple[Agent, ...]:
    step, kind = draw(st.sampled_from(_places(OF_SIM, kinds)))
    *before, last = road(step, kind)
    words = st.lists(st.sampled_from(WORDS), max_size=2)
    asks = (*draw(words), *last.asks.split(), *draw(words))
    # What the background does is waited for, and done once.
    often = (1,) if step in _of("template", "pool", "handover", "fork") else (1, 1, 1, 2)
    faults = _FIRST.get(step, "") + written(step, draw(st.sampled_from(often)), kind)
    if draw(st.booleans()):
        second, other = draw(st.sampled_from(_places(UNDOING, kinds)))
        faults += f">{written(second, 1, other)}"
    meanwhile = last.meanwhile or draw(st.sampled_from(("", "", ENDED, REBOOTED)))
    return (*before, replace(last, asks=" ".join(asks), faults=faults, meanwhile=meanwhile))


def _places(steps: Iterable[str], kinds: Iterable[str]) -> list[tuple[str, str]]:
    return [(step, kind) for step in sorted(steps) for kind in kinds if can(step, kind)]


def can(step: str, kind: str) -> bool:
    """Whether a fault of this kind means something at this step."""
    if kind == ENOSPC:
        return step in FULL_DISK
    return kind != ERROR or step not in UNFAILING


def written(step: str, nth: int = 1, kind: str = KILL) -> str:
    return f"{step}:{nth}:{kind}" if kind else f"{step}:{nth}"
