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
from atoll.model.long_lived import LongLivedCredential
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
        (["--memory", "12M"], "memory_mib"),
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


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nUFVCTElD\n-----END CERTIFICATE-----\n"
PRIVATE = "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n"


def credential_file(tmp_path: Path, text: str = PRIVATE + CERTIFICATE, mode: int = 0o600) -> str:
    file = tmp_path / "web.pem"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_the_credential_of_a_role_is_read_from_a_file(tmp_path: Path):
    got = request("--role", "web", "--role-credential", credential_file(tmp_path)).role_credential
    assert got == LongLivedCredential(CERTIFICATE, PRIVATE)


def test_the_credential_of_a_role_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO((CERTIFICATE + PRIVATE).encode())))
    got = request("--role", "web", "--role-credential", "-").role_credential
    assert got == LongLivedCredential(CERTIFICATE, PRIVATE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_credential_that_others_may_read_is_refused_with_what_to_do(tmp_path: Path, mode: int):
    file = credential_file(tmp_path, mode=mode)
    with pytest.raises(Invalid, match="others than its owner may read it") as refusal:
        request("--role", "web", "--role-credential", file)
    assert refusal.value.hint == f"chmod 600 {file}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("U0VDUkVU", "certificate .* there is none in it"),
        (CERTIFICATE, "there is no private key in it"),
        (CERTIFICATE + PRIVATE.replace("PRIVATE", "ENCRYPTED PRIVATE"), "is encrypted"),
        (CERTIFICATE + PRIVATE + "U0VDUkVU" * 9000, "must be at most 65536 bytes"),
    ],
)
def test_what_is_no_credential_is_refused_unseen(tmp_path: Path, text: str, says: str):
    with pytest.raises(Invalid, match=says) as refusal:
        request("--role", "web", "--role-credential", credential_file(tmp_path, text))
    assert "U0VDUkVU" not in f"{refusal.value.brief} {refusal.value.hint} {refusal.value.details}"


def test_a_credential_needs_a_role_and_a_file_that_is_there(tmp_path: Path):
    with pytest.raises(Invalid, match="is for a role, and the VM has none"):
        request("--role-credential", credential_file(tmp_path))
    with pytest.raises(Invalid, match="no such file"):
        request("--role", "web", "--role-credential", str(tmp_path / "nothing"))


def test_standard_input_is_one_thing_only():
    for other in (["--user-data", "-"], ["--request", "-"]):
        options = parse(
            "create", "--name", "w", "--image", "i", "--role", "w", "--role-credential", "-", *other
        )
        with pytest.raises(Malformed, match="standard input can be one thing only"):
            create_request(options, b"")


def test_a_request_from_a_file_can_be_given_its_credential(tmp_path: Path):
    spec = VmSpec("web", "appliance", role="web")
    file = tmp_path / "request"
    file.write_bytes(msgspec.json.encode(CreateVm(spec)))
    options = ["create", "--request", str(file)]
    assert replayed_request(parse(*options)).role_credential is None
    wanted = LongLivedCredential(CERTIFICATE, PRIVATE)
    given = replayed_request(parse(*options, "--role-credential", credential_file(tmp_path)))
    assert given.role_credential == wanted
    file.write_bytes(msgspec.json.encode(CreateVm(spec, role_credential=wanted)))
    assert replayed_request(parse(*options)).role_credential == wanted


def test_stop_asks_first_and_forces_at_once_when_told():
    assert stop_request(parse("stop", "web")) == StopVm(grace_s=15)
    assert stop_request(parse("stop", "web", "--grace", "1m")) == StopVm(grace_s=60)
    assert stop_request(parse("stop", "web", "--force")) == StopVm(grace_s=0)
    with pytest.raises(Malformed, match="not allowed with"):
        parse("stop", "web", "--force", "--grace", "3s")
    with pytest.raises(Invalid, match="grace"):
        stop_request(parse("stop", "web", "--grace", "601s"))


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
