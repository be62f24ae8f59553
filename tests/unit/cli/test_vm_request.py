from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.cli.main import parser_for
from atoll.cli.vm_request import create_request, read_user_data, stop_request
from atoll.errors import Invalid, Malformed
from atoll.model.vm import MAX_USER_DATA, MachineType, VmSpec


def parse(*argv: str):
    return parser_for(["vm"]).parse_args(["vm", *argv])


def request(*argv: str) -> CreateVm:
    return create_request(parse("create", "--name", "web", "--image", "appliance", *argv), b"")


def test_the_least_that_can_be_asked_for_leaves_the_rest_to_the_model():
    assert request() == CreateVm(spec=VmSpec(name="web", image="appliance"))


def test_everything_that_can_be_asked_for_arrives():
    options = parse(
        "create", "--name", "web", "--image", "appliance", "--memory", "2GiB", "--cpus", "1.5",
        "--driver", "sim", "--machine-type", "microvm", "--subnet", "blue", "--tag", "a=b", "--tag", "c=",
        "--owner-user", "alice",
        "--owner-user", "bob", "--owner-group", "ops", "--wait-for", "port:80", "--timeout", "2m",
        "--request-id", "r-1",
    )  # fmt: skip
    assert create_request(options, b"#!") == CreateVm(
        spec=VmSpec(
            name="web",
            image="appliance",
            driver="sim",
            memory_mib=2048,
            milli_cpus=1500,
            machine_type=MachineType.MICROVM,
            subnet="blue",
            tags={"a": "b", "c": ""},
            owner_users=("alice", "bob"),
            owner_groups=("ops",),
        ),
        user_data=b"#!",
        wait=Wait(wait_for="port:80", timeout_s=120),
        request_id="r-1",
    )


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
