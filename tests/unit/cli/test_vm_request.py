from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.cli.main import parser_for
from atoll.cli.vm_request import create_request, read_user_data, replayed_request, stop_request
from atoll.errors import Invalid, Malformed
from atoll.model.hardware import WatchdogAction
from atoll.model.vm import MAX_USER_DATA, MachineType, RestartPolicy, VmSpec
from atoll.model.volume import FileSystem, VolumeSpec, VolumeType

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def parse(*argv: str):
    return parser_for(["vm"]).parse_args(["vm", *argv])


def request(*argv: str) -> CreateVm:
    return create_request(parse("create", "--name", "web", "--image", "appliance", *argv), b"")


def test_the_least_that_can_be_asked_for_leaves_the_rest_to_the_model():
    assert request() == CreateVm(spec=VmSpec(name="web", image="appliance"), acknowledge=True)


def test_everything_that_can_be_asked_for_arrives():
    options = parse(
        "create", "--name", "web", "--image", "appliance", "--memory", "2GiB", "--cpus", "1.5",
        "--driver", "sim", "--machine-type", "microvm", "--subnet", "blue", "--extra-subnet", "red",
        "--extra-subnet", "green", "--tag", "a=b", "--tag", "c=",
        "--kernel-options", "quiet a=1", "--watchdog-action", "shutdown",
        "--owner-user", "alice",
        "--owner-user", "bob", "--owner-group", "ops", "--wait-for", "port:80", "--timeout", "2m",
        "--request-id", "r-1", "--restart", "on-crash", "--protect", "--expires", "2h",
        "--destroy-on-power-down", "--volume", "size=1GiB,fs=ext4,name=data", "--volume", "size=8MiB,type=memory",
    )  # fmt: skip
    assert create_request(options, b"#!", NOW) == CreateVm(
        spec=VmSpec(
            name="web",
            image="appliance",
            driver="sim",
            memory_mib=2048,
            milli_cpus=1500,
            machine_type=MachineType.MICROVM,
            subnet="blue",
            extra_subnets=("red", "green"),
            kernel_options="quiet a=1",
            watchdog_action=WatchdogAction.SHUTDOWN,
            tags={"a": "b", "c": ""},
            owner_users=("alice", "bob"),
            owner_groups=("ops",),
            restart=RestartPolicy.ON_CRASH,
            protected=True,
            destroy_on_power_down=True,
            expires_at=NOW + timedelta(hours=2),
            volumes=(
                VolumeSpec(1024, "data", fs=FileSystem.EXT4),
                VolumeSpec(8, type=VolumeType.MEMORY),
            ),
        ),
        user_data=b"#!",
        wait=Wait(wait_for="port:80", timeout_s=120),
        request_id="r-1",
        acknowledge=True,
    )


@pytest.mark.parametrize("missing", [["--name", "web"], ["--image", "appliance"], []])
def test_a_vm_needs_a_name_and_an_image(missing: list[str]):
    with pytest.raises(Malformed, match="the following arguments are required"):
        create_request(parse("create", *missing), b"")


def test_what_a_vm_is_read_back_as_makes_it_again(tmp_path: Path):
    asked = CreateVm(VmSpec("web", "appliance", memory_mib=256, protected=True), b"#!/bin/sh\n\xff")
    file = tmp_path / "request"
    file.write_bytes(msgspec.json.encode(asked))
    got = replayed_request(
        parse("create", "--request", str(file), "--wait-for", "dhcp", "--request-id", "r-2")
    )
    assert (got.spec, got.user_data) == (asked.spec, asked.user_data)
    assert (got.wait.wait_for, got.request_id, got.acknowledge) == ("dhcp", "r-2", True)
    assert replayed_request(parse("create", "--request", str(file), "--name", "web2")).spec.name == "web2"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"{", "request .*: "), (b"{}", "missing required field `spec`"), (b'{"spec":{"name":"a"}}', "`image`")],
)
def test_a_request_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, says: str):
    file = tmp_path / "request"
    file.write_bytes(content)
    with pytest.raises(Malformed, match=says):
        replayed_request(parse("create", "--request", str(file)))


@pytest.mark.parametrize(
    "option", [["--memory", "1GiB"], ["--protect"], ["--volume", "size=1GiB"], ["--tag", "a=b"]]
)
def test_a_request_is_not_mixed_with_options(tmp_path: Path, option: list[str]):
    with pytest.raises(Malformed, match=f"{option[0]} and --request cannot be combined"):
        replayed_request(parse("create", "--request", str(tmp_path), *option))


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        (["--memory", "12"], "memory_mib"),
        (["--memory", "1.5"], "memory"),
        (["--cpus", "0"], "milli_cpus"),
        (["--cpus", "1.2345"], "cpus"),
        (["--driver", "q/e"], "driver"),
        (["--subnet", "B"], "subnet"),
        (["--tag", "=v"], "tag key"),
        (["--tag", "k=\x1b"], "tag k"),
        (["--owner-user", "a b"], "owner"),
        (["--wait-for", "soon"], "wait_for"),
        (["--timeout", "2h"], "timeout_s"),
        (["--request-id", "a/b"], "request_id"),
    ],
)
def test_nonsense_is_refused_and_named(argv, field):
    with pytest.raises(Invalid) as refusal:
        request(*argv)
    assert refusal.value.details["field"] == field


def test_stop_asks_first_and_forces_at_once_when_told():
    assert stop_request(parse("stop", "web")) == StopVm(grace_s=15)
    assert stop_request(parse("stop", "web", "--grace", "1m")) == StopVm(grace_s=60)
    assert stop_request(parse("stop", "web", "--force")) == StopVm(grace_s=0)
    with pytest.raises(Malformed, match="not allowed with"):
        parse("stop", "web", "--force", "--grace", "3")
    with pytest.raises(Invalid, match="grace"):
        stop_request(parse("stop", "web", "--grace", "601"))


def test_user_data_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "data").write_bytes(b"x" * MAX_USER_DATA)
    assert len(read_user_data(str(tmp_path / "data"))) == MAX_USER_DATA
    assert read_user_data(None) == b""


def test_a_file_that_is_too_large_is_refused_by_its_size_without_reading_it(tmp_path: Path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(Invalid, match="1099511627776 bytes"):
        read_user_data(str(path))


def test_endless_input_is_read_only_as_far_as_needed(monkeypatch):
    class Endless(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            self.given += len(buffer)
            return len(buffer)

    source = Endless()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(source)))
    with pytest.raises(Invalid, match="user_data"):
        read_user_data("-")
    assert source.given < 2 * MAX_USER_DATA


@pytest.mark.parametrize("source", ["/nowhere/at/all", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(source):
    with pytest.raises(Invalid, match="user_data"):
        read_user_data(source)
