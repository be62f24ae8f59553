"""An agent that is killed while it works on a container: its root is neither lost nor left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import private_engine as engine
from atoll.api import changes
from atoll.api import hypervisor as api
from atoll.api.changes import ChangeVm
from atoll.api.client import Client
from atoll.api.hypervisor import StopVm, Wait
from atoll.api.shares import SHARE_ALLOW
from atoll.drivers.machine.docker.config import stage_of
from atoll.errors import AtollError
from atoll.model.share import Share, ShareMount
from atoll.model.vm import VmState
from atoll.system.steps import STEPS

if TYPE_CHECKING:
    from tests.host.faults.lab import Lab

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

OF_CONTAINERS = sorted(
    name for name in STEPS if name.startswith(("docker.", "change.grown", "change.shrunk", "halt.discarded"))
)


def change(client: Client, vm: str, **wishes: Any) -> None:
    client.call(changes.VM_CHANGE, {"vm": vm}, body=ChangeVm(**wishes))


def start(client: Client, name: str) -> None:
    list(client.stream(api.VM_START, {"vm": name}, body=Wait("started", 60)))


def life(node: Lab, client: Client) -> list[Callable[[], Any]]:
    """All that can be done to a container, its root carried into a new one included."""
    return [
        lambda: node.create(client, "web"),
        lambda: change(client, "web", memory_mib=256),
        lambda: change(client, "web", memory_mib=128),
        lambda: client.call(api.VM_STOP, {"vm": "web"}, body=StopVm(0)),
        lambda: client.call(SHARE_ALLOW, body=Share("spare", "/srv", read_only=True)),
        lambda: change(
            client, "web", name="web2", add_shares=(ShareMount("spare", "/spare", read_only=True),)
        ),
        lambda: start(client, "web2"),
        lambda: client.call(api.VM_DESTROY, {"vm": "web2"}),
    ]


def left_in_engine(socket: Path, node: Lab) -> tuple[list[str], list[str]]:
    """The containers of the node, and the roots that it keeps."""
    prefix = f"atoll/{node.cloud.facts['id']}/"
    found = [json.loads(engine.ask(socket, path)) for path in ("/containers/json?all=1", "/images/json")]
    containers, images = (
        [one for one in each if (one["Labels"] or {}).get("atoll.cgroup", "").startswith(prefix)]
        for each in found
    )
    return [one["Names"][0] for one in containers], [one["RepoTags"][0] for one in images]


@pytest.mark.parametrize("step", OF_CONTAINERS)
def test_a_root_is_neither_lost_nor_left_when_the_agent_is_killed(
    docker_node: Lab, engine_socket: Path, step: str
) -> None:
    agent = docker_node.start(f"{step}:1")
    assert docker_node.serving(agent)
    with docker_node.client() as client:
        try:
            for action in life(docker_node, client):
                action()
        except (AtollError, OSError):
            assert agent.dead(5)
    assert agent.dead(), f"{step} is never passed"

    docker_node.recovered()
    vms = docker_node.check()
    containers, _ = left_in_engine(engine_socket, docker_node)
    assert bool(vms) or not containers
    with docker_node.client() as client:
        for vm in vms.values():
            if vm.state is not VmState.RUNNING:
                start(client, vm.name)
            # One container for one VM: that which it had, or the one that its root went into.
            assert len(left_in_engine(engine_socket, docker_node)[0]) == 1
            client.call(api.VM_DESTROY, {"vm": vm.name})
    assert docker_node.check() == {}
    assert left_in_engine(engine_socket, docker_node) == ([], [])
    staged = stage_of(f"atoll/{docker_node.cloud.facts['id']}")
    assert not list(staged.parent.glob(f"{staged.name}-*"))
