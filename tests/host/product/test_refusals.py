"""Bad input never reaches the host: an exit status, a brief with field and value, a hint, and no change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.system import processes

if TYPE_CHECKING:
    from tests.host.conftest import Cli


def create(name: str = "bad", image: str = "appliance", **options: str) -> tuple[str, ...]:
    """A create with something wrong in it."""
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    return ("vm", "create", "--name", name, "--image", image, *words)


def condition(cloud: Cli) -> tuple[Any, ...]:
    """All that a create could have changed."""
    vms = {path.name for path in (cloud.directory / "node/vms").iterdir()}
    running = {ip: processes.processes_in(cloud.group(ip)) for ip in vms}
    node = cloud.request("GET", "/v1/node").json()
    # One is made of what was created before, in the background.
    del node["templates"]
    return cloud.request("GET", "/v1/vms").json(), node, vms, running


# The words, the exit status, and what the brief must name.
REFUSED: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "a size without sense": (create(memory="3QB"), 2, ("memory", "3QB")),
    "a size below all": (create(memory="1MiB"), 2, ("--memory", "1")),
    "a size below the image's": (create(memory="32MiB"), 2, ("--memory", "32", "appliance")),
    "a size above all": (create(memory="999TiB"), 2, ("--memory", "1047527424")),
    "a negative size": (create(memory="-1"), 2, ("memory",)),
    "more memory than there is": (create(memory="8TiB"), 6, ("memory", "8 TiB", "free")),
    "more CPUs than there are": (create(cpus="512"), 6, ("cpus", "512", "free")),
    "no CPUs": (create(cpus="0"), 2, ("--cpus", "0")),
    "a name with a slash": (create(name="a/b"), 2, ("name", "'a/b'")),
    "a name that goes up": (create(name="../../etc"), 2, ("name", "'../../etc'")),
    "a name with a newline": (create(name="a\nb"), 2, ("name", r"'a\nb'")),
    "a name that ends in a newline": (create(name="a\n"), 2, ("name", r"'a\n'")),
    "a name in upper case": (create(name="Web"), 2, ("name", "'Web'")),
    "an empty name": (create(name=""), 2, ("name", "''")),
    "a name that is too long": (create(name="a" * 64), 2, ("name", "aaaa")),
    "an unknown image": (create(image="ghost"), 3, ("image", "ghost")),
    "an image that goes up": (create(image="../appliance"), 2, ("image", "'../appliance'")),
    "an unknown driver": (create(driver="ghost"), 3, ("driver", "ghost")),
    "an unknown subnet": (create(subnet="ghost"), 3, ("subnet", "ghost")),
    "a machine type without sense": (create(machine_type="abacus"), 2, ("machine-type", "abacus")),
    "a tag without a value": (create(tag="lonely"), 2, ("tag", "lonely")),
    "a stage without sense": (create(wait_for="lunch"), 2, ("--wait-for", "'lunch'")),
    "a port without sense": (create(wait_for="port:65536"), 2, ("--wait-for", "'port:65536'")),
    "a time without sense": (create(timeout="soon"), 2, ("timeout", "soon")),
    "user data that is not there": (create(user_data="/no/such/file"), 2, ("--user-data", "/no/such/file")),
    "a name that is taken": (create(name="booted"), 4, ("VM booted",)),
    "a VM that is not there": (("vm", "show", "ghost"), 3, ("VM", "ghost")),
    "a reference that goes up": (("vm", "stop", "../node"), 2, ("VM", "'../node'")),
    "a subnet with host bits": (("subnet", "add", "odd", "10.1.2.3/24"), 2, ("cidr", "10.1.2.3/24")),
    "an address outside its subnet": (
        ("subnet", "change", "default", "--add", "192.0.2.1"), 2, ("ip", "192.0.2.1", "default"),
    ),
    "an unknown verb": (("vm", "explode", "web"), 2, ("explode",)),
}  # fmt: skip
# Each of these says all there is to say in its brief.
SELF_EXPLANATORY = {"an address outside its subnet"}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_by_name_and_changes_nothing(
    cloud: Cli, booted: dict[str, Any], what: str
) -> None:
    words, status, named = REFUSED[what]
    before = condition(cloud)
    refusal = cloud.refused(*words)
    assert refusal.status == status
    assert [each for each in named if each not in refusal.brief] == []
    assert refusal.hint or what in SELF_EXPLANATORY, refusal.brief
    assert condition(cloud) == before


def test_a_pool_without_addresses_is_no_capacity(cloud: Cli) -> None:
    cloud("subnet", "add", "bare", "10.98.0.0/24", "--no-pool")
    refusal = cloud.refused(*create(subnet="bare"))
    assert refusal.status == 6
    assert "no free address in subnet bare" in refusal.brief
    assert "atoll subnet change bare --add" in refusal.hint


def test_user_data_of_100_mib_is_refused_before_it_is_sent(cloud: Cli, tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        os.truncate(file.fileno(), 100 << 20)
    refusal = cloud.refused(*create(user_data=str(big)))
    assert refusal.status == 2
    assert "--user-data '104857600 bytes'" in refusal.brief
    assert refusal.hint


def test_a_body_of_100_mib_is_refused_before_it_is_read(cloud: Cli) -> None:
    headers = {"Content-Length": str(100 << 20), "Content-Type": "application/json"}
    reply = cloud.request("POST", "/v1/vms", b"{", headers=headers)
    assert (reply.status, reply.json()["code"]) == (413, "too_large")
    assert reply.json()["brief"]
    assert cloud.request("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"spec": {"name": "web", "image": "appl', "truncated"),
        (b"", ""),
        (b"[]", ""),
        (b'{"spec": {"name": "web"}}', "image"),
        (b'{"spec": {"name": "web", "image": "appliance", "memory_mib": "lots"}}', "memory_mib"),
        (b'{"spec": {"name": "web", "image": "appliance", "colour": "red"}}', "colour"),
        (b'{"spec": {"name": "a/b", "image": "appliance"}}', "name"),
        (b'{"spec": {"name": "web", "image": "appliance"}, "user_data": "%%%"}', "user_data"),
    ],
    ids=["cut off", "empty", "a list", "incomplete", "mistyped", "unknown", "bad name", "not base64"],
)
def test_a_body_that_makes_no_sense_is_refused(cloud: Cli, body: bytes, named: str) -> None:
    before = condition(cloud)
    reply = cloud.request("POST", "/v1/vms", body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.json()["code"]) == (400, "malformed")
    assert named in reply.json()["brief"]
    assert reply.json()["hint"]
    assert condition(cloud) == before


def test_a_name_that_only_ends_badly_is_refused_too(cloud: Cli) -> None:
    body = b'{"spec": {"name": "web\\n", "image": "appliance"}}'
    reply = cloud.request("POST", "/v1/vms", body, headers={"Content-Type": "application/json"})
    assert reply.status in (400, 422)
    assert "name" in reply.json()["brief"]
    assert "web\n" not in {vm["name"] for vm in cloud.json("vm", "list")}


def test_a_wrong_verb_is_told_the_right_ones(cloud: Cli) -> None:
    reply = cloud.request("PATCH", "/v1/vms")
    assert reply.status == 405
    assert "GET" in json.dumps(reply.json())
    assert cloud.request("GET", "/v1/nothing").status == 404


def test_a_vm_that_is_late_runs_on(cloud: Cli) -> None:
    refusal = cloud.refused(*create(name="late", wait_for="port:1", timeout="1s"))
    try:
        assert refusal.status == 8
        assert "did not reach port:1 in 1 s" in refusal.brief
        assert "it runs on" in refusal.hint
        assert cloud.show("late")["state"] == "running"
    finally:
        cloud.destroy("late")


def test_without_a_cloud_commands_say_how_to_get_one(empty_cloud: Cli) -> None:
    for words in (("vm", "list"), create(), ("node", "show")):
        refusal = empty_cloud.refused(*words)
        assert refusal.status == 7
        assert f"no cloud in {empty_cloud.directory}" in refusal.brief
        assert "atoll up" in refusal.hint
