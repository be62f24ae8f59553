"""`atoll vm` on the real wire."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.model.vm import VM

Atoll = Callable[..., Any]


def test_create_prints_one_object_with_everything_that_scripts_rely_on(atoll: Atoll, cloud: Any) -> None:
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance", "--memory", "256MiB", "--cpus",
                    "0.5", "--tag", "role=web", "-o", "json")  # fmt: skip
    assert outcome.status == 0
    vm = outcome.json
    assert (vm["name"], vm["memory_mib"], vm["milli_cpus"], vm["tags"]) == ("web", 256, 500, {"role": "web"})
    assert vm.keys() == set(VM.__struct_fields__)
    assert outcome.err == "web: address 0.01s\nweb: started 0.12s\n"


def test_quiet_prints_no_progress(atoll: Atoll) -> None:
    assert atoll("-q", "vm", "create", "--name", "web", "--image", "appliance").err == ""


def test_user_data_arrives_byte_for_byte(atoll: Atoll, cloud: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "data").write_bytes(data)
    outcome = atoll("vm", "create", "--name", "w", "--image", "i", "--user-data", str(tmp_path / "data"))
    assert outcome.status == 0
    assert cloud.node.created[0].user_data == data


def test_user_data_can_come_from_standard_input(
    atoll: Atoll, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"#!/bin/sh\n")))
    assert atoll("vm", "create", "--name", "web", "--image", "appliance", "--user-data", "-").status == 0
    assert cloud.node.created[0].user_data == b"#!/bin/sh\n"


CREDENTIAL = (
    "-----BEGIN CERTIFICATE-----\nUFVCTElD\n-----END CERTIFICATE-----\n"
    "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n"
)


def test_the_credential_of_a_role_arrives_and_is_shown_nowhere(
    atoll: Atoll, cloud: Any, tmp_path: Path
) -> None:
    file = tmp_path / "web.pem"
    file.write_text(CREDENTIAL)
    create = [
        "vm",
        "create",
        "--name",
        "web",
        "--image",
        "i",
        "--role",
        "web",
        "--role-credential",
        str(file),
    ]
    file.chmod(0o644)
    refused = atoll(*create)
    assert (refused.status, cloud.node.created) == (2, [])
    assert refused.err.endswith(f"others than its owner may read it\n  hint: chmod 600 {file}\n")
    file.chmod(0o600)
    outcomes = [
        refused,
        atoll(*create, "-o", "json"),
        atoll("vm", "show", "web"),
        atoll("vm", "show", "web", "-o", "yaml"),
        atoll("vm", "show", "web", "--as-request"),
    ]
    sent = cloud.node.created[0].role_credential
    assert sent.certificate + sent.key == CREDENTIAL
    assert [outcome.status for outcome in outcomes] == [2, 0, 0, 0, 0]
    for outcome in outcomes:
        assert "U0VDUkVU" not in outcome.out + outcome.err
        assert "PRIVATE" not in outcome.out + outcome.err


def test_a_vm_tells_until_when_it_has_a_credential_and_what_is_wrong_with_it(
    atoll: Atoll, cloud: Any
) -> None:
    ends_at = datetime(2024, 6, 1, tzinfo=UTC)
    told = {"role_problem": "it answered 403", "role_cloud": "none: no broker"}
    cloud.node.make("web", role="web", role_credential_expires_at=ends_at, **told)
    shown = atoll("vm", "show", "web").out
    assert re.search(r"role-credential +2024-06-01 00:00:00Z", shown)
    assert re.search(r"role-problem +it answered 403", shown)
    assert re.search(r"role-cloud +none: no broker", shown)


@pytest.mark.parametrize(
    "bad",
    [
        ["--name", "../etc", "--image", "appliance"],
        ["--name", "web\n", "--image", "appliance"],
        ["--name", "web", "--image", "a/b"],
        ["--name", "web", "--image", "appliance", "--memory", "lots"],
        ["--name", "web", "--image", "appliance", "--memory", "1KiB"],
        ["--name", "web", "--image", "appliance", "--cpus", "-1"],
        ["--name", "web", "--image", "appliance", "--tag", "no-value"],
        ["--name", "web", "--image", "appliance", "--wait-for", "port:0"],
        ["--name", "web", "--image", "appliance", "--timeout", "0"],
        ["--name", "web", "--image", "appliance", "--request-id", "a b"],
        ["--name", "web", "--image", "appliance", "--user-data", "/nowhere"],
        ["--name", "web", "--image", "appliance", "-c", "colour"],
        ["--name", "web", "--image", "appliance", "--machine-type", "vax"],
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(atoll: Atoll, cloud: Any, bad: list[str]) -> None:
    outcome = atoll("vm", "create", *bad)
    assert outcome.status == 2
    assert outcome.err.startswith("atoll: ")
    assert outcome.out == ""
    assert cloud.node.created == []


def test_an_error_of_the_service_keeps_its_words_and_gives_its_exit_status(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web")
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance", "-o", "json")
    assert outcome.status == 4
    assert outcome.out == ""
    assert outcome.err == "atoll: creating VM web: the name is in use\n  hint: choose another one\n"


def test_an_error_in_mid_stream_gives_its_exit_status(atoll: Atoll) -> None:
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance", "--wait-for", "port:9")
    assert outcome.status == 8
    assert outcome.err.splitlines()[-2:] == [
        "atoll: waiting for VM web: port 9 is closed",
        "  hint: atoll vm log tells more",
    ]


def test_a_stream_that_ends_without_a_result_is_no_success(atoll: Atoll, cloud: Any) -> None:
    cloud.node.mute_after = "address"
    outcome = atoll("vm", "create", "--name", "web", "--image", "appliance")
    assert outcome.status == 7
    assert outcome.out == ""


def test_list_prints_an_array_sorted_as_asked(atoll: Atoll, cloud: Any) -> None:
    for name, memory_mib in (("b", 64), ("a", 512), ("c", 128)):
        cloud.node.make(name, memory_mib=memory_mib)
    names = [vm["name"] for vm in atoll("vm", "list", "-o", "json", "--sort=-memory").json]
    assert names == ["a", "c", "b"]
    assert atoll("vm", "list", "-o", "name", "--sort", "name").out == "a\nb\nc\n"


def test_an_empty_list_is_an_empty_array(atoll: Atoll) -> None:
    assert atoll("vm", "list", "-o", "json").json == []


def test_list_shows_a_table_with_the_columns_asked_for(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web")
    outcome = atoll("vm", "list", "-c", "NAME,Ip,state")
    assert outcome.out.splitlines() == [
        "NAME  IP          STATE",
        "web   10.213.0.5  running",
    ]


def test_show_finds_by_name_and_by_ip(atoll: Atoll, cloud: Any) -> None:
    vm = cloud.node.make("web")
    by_name = atoll("vm", "show", "web", "-o", "json").json
    assert by_name == atoll("vm", "show", vm.ip, "-o", "json").json
    assert by_name["ip"] == vm.ip


def test_showing_what_is_not_there_is_exit_status_3(atoll: Atoll) -> None:
    assert atoll("vm", "show", "ghost").status == 3


def test_stop_acts_on_every_vm_and_says_that_it_was_done_in_part(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    cloud.node.make("b")
    cloud.node.make("c")
    cloud.node.protected.add("b")
    outcome = atoll("vm", "stop", "ghost", "a", "b", "c", "-o", "json")
    assert outcome.status == 10
    assert re.search(r"2 of 4 VMs stopped in [0-9.]+s; not ghost, b\n$", outcome.err)
    assert [(vm["name"], vm["state"]) for vm in outcome.json] == [("a", "stopped"), ("c", "stopped")]
    assert "atoll: no VM ghost" in outcome.err
    assert "atoll: VM b is not yours" in outcome.err


def test_one_vm_is_one_object_and_rows_have_one_header(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    cloud.node.make("b")
    assert atoll("vm", "stop", "a", "-o", "json").json["state"] == "stopped"
    rows = atoll("vm", "start", "a", "b", "-c", "name,state").out.splitlines()
    assert rows == ["NAME          STATE", "a             running", "b             running"]


def test_what_fails_for_all_has_the_status_of_its_failure(atoll: Atoll, cloud: Any) -> None:
    assert atoll("vm", "stop", "ghost", "spook").status == 3
    cloud.node.make("a")
    cloud.node.make("b")
    cloud.node.protected |= {"a", "b"}
    assert atoll("vm", "destroy", "a", "b", "--yes").status == 5


def test_a_change_that_succeeds_is_quiet(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    for words in (["stop", "a"], ["start", "a"], ["reboot", "a"], ["change", "a", "--tag", "x=1"]):
        assert atoll("vm", *words).out == ""


def test_several_are_destroyed_at_once_with_one_summary(atoll: Atoll, cloud: Any) -> None:
    for number in range(9):
        cloud.node.make(f"vm{number}")
    names = [f"vm{number}" for number in range(9)]
    outcome = atoll("vm", "destroy", "--yes", "gone", *names)
    assert (outcome.status, cloud.node.vms) == (0, {})
    assert outcome.err.startswith("gone: gone already\n")
    assert re.search(r"9 of 9 VMs destroyed in [0-9.]+s\n$", outcome.err)


def test_without_a_name_and_an_image_a_vm_has_both(atoll: Atoll, cloud: Any) -> None:
    vm = atoll("vm", "create", "-o", "json").json
    assert re.fullmatch(r"[a-z]+-[a-z]+", vm["name"])
    assert vm["image"] == "appliance"


def test_so_many_are_made_with_numbers_and_one_summary(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("web-3")
    outcome = atoll("vm", "create", "--name", "web", "--count", "6", "-o", "json")
    assert outcome.status == 10
    assert [vm["name"] for vm in outcome.json] == ["web-1", "web-2", "web-4", "web-5", "web-6"]
    assert len(cloud.node.acknowledged) == 5
    assert re.search(r"5 of 6 VMs made in [0-9.]+s; not web-3\n$", outcome.err)
    assert "the name is in use" in outcome.err


@pytest.mark.parametrize("count", ["0", "-1", "x", "100000"])
def test_a_count_is_a_number_of_vms(atoll: Atoll, count: str) -> None:
    assert atoll("vm", "create", f"--count={count}").status == 2


def test_force_is_a_grace_of_nothing(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    atoll("vm", "stop", "a", "--force")
    atoll("vm", "stop", "a", "--grace", "2m")
    atoll("vm", "stop", "a")
    assert [grace_s for _, grace_s in cloud.node.stopped] == [0, 120, 15]


def test_a_script_that_does_not_say_yes_destroys_nothing(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    refused = atoll("vm", "destroy", "a", "b")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == (
        "atoll: vm destroy a b: there is no terminal to ask at, and nothing was done\n  hint: say --yes\n"
    )
    refused = atoll("volume", "delete", "a", "data")
    assert (refused.status, refused.err.splitlines()[1]) == (2, "  hint: say --yes")
    assert len(cloud.node.vms) == 1


def test_destroy_needs_no_question_of_whoever_says_yes_and_repeats_well(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    assert atoll("vm", "destroy", "a", "--yes").status == 0
    assert cloud.node.vms == {}
    again = atoll("vm", "destroy", "a", "--yes")
    assert (again.status, again.err) == (0, "a: gone already\n")


def test_what_is_not_ours_is_not_destroyed(atoll: Atoll, cloud: Any) -> None:
    cloud.node.make("a")
    cloud.node.protected.add("a")
    assert atoll("vm", "destroy", "a", "--yes").status == 5
    assert len(cloud.node.vms) == 1


def test_log_and_user_data_are_printed_byte_for_byte(cloud: Any, capfdbinary: Any) -> None:
    from atoll.cli.main import main

    cloud.node.make("web")
    cloud.node.logs["web"] = bytes(range(256)) * 3
    cloud.node.user_data["web"] = b"\x00\xff"
    assert main(["vm", "log", "web", "--dir", str(cloud.directory)]) == 0
    assert capfdbinary.readouterr().out == bytes(range(256)) * 3
    assert main(["vm", "user-data", "web", "--dir", str(cloud.directory)]) == 0
    assert capfdbinary.readouterr().out == b"\x00\xff"


def test_yaml_reads_back_as_the_same_vm(atoll: Atoll, cloud: Any) -> None:
    import yaml

    cloud.node.make("web", tags={"note": "yes: 'no' #\u2028", "n": "012"}, ready={"started": 1e-07})
    assert yaml.safe_load(atoll("vm", "list", "-o", "yaml").out) == atoll("vm", "list", "-o", "json").json
