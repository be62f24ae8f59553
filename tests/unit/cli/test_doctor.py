from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.cli.doctor import advice
from atoll.cli.doctor_place import WRITTEN, judge_dns, judge_engine, judge_folders, judge_time, name_servers
from atoll.cli.finding import FAIL, OK, WARN, Finding

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SOCKET = Path("/run/docker.sock")


def test_what_is_well_needs_no_words():
    assert advice(Finding("root", OK, "running as root")) == ""


def test_what_is_not_is_told_with_why_it_matters_and_what_to_type():
    told = advice(Finding("tap devices", FAIL, "no /dev/net/tun", "modprobe tun", "a VM has no network"))
    assert told == "\ntap devices: no /dev/net/tun\n  why:  a VM has no network\n  mend: modprobe tun\n"


@pytest.mark.parametrize(
    ("now", "synchronised", "ca_begins", "result"),
    [
        (NOW, True, None, OK),
        (NOW, True, NOW - timedelta(days=1), OK),
        (NOW, None, None, OK),
        (NOW, False, None, WARN),
        (NOW, True, NOW + timedelta(seconds=1), FAIL),
        (WRITTEN - timedelta(seconds=1), True, None, FAIL),
    ],
)
def test_a_clock_is_wrong_when_certificates_do_not_hold_by_it(now, synchronised, ca_begins, result):
    found = judge_time(now, synchronised, ca_begins)
    assert found.result == result
    assert bool(found.remedy) == bool(found.why) == (result != OK)


def test_name_servers_are_read_as_the_resolver_does():
    assert name_servers(
        "# nameserver 1.1.1.1\nsearch x\nnameserver 10.0.0.1\nnameserver\nnameserver ::1 x\n"
    ) == [
        "10.0.0.1",
        "::1",
    ]


@pytest.mark.parametrize(
    ("answering", "result", "word"),
    [
        ({"10.0.0.1": True}, OK, "10.0.0.1"),
        ({}, WARN, "no name server"),
        ({"10.0.0.1": False}, WARN, "no answer from 10.0.0.1"),
        ({"10.0.0.1": True, "10.0.0.2": False}, WARN, "no answer from 10.0.0.2"),
    ],
)
def test_name_servers_that_are_silent_are_named(answering, result, word):
    found = judge_dns(answering)
    assert (found.result, word in found.found) == (result, True)


@pytest.mark.parametrize(
    ("named", "answers", "sockets", "result", "word"),
    [
        ("", SOCKET, [SOCKET], OK, "answers at /run/docker.sock"),
        ("unix:///x", Path("/x"), [], OK, "DOCKER_HOST=unix:///x"),
        ("", None, [], OK, "none"),
        ("", None, [SOCKET], WARN, "nobody answers at /run/docker.sock"),
        ("unix:///x", None, [SOCKET], WARN, "DOCKER_HOST=unix:///x"),
        ("tcp://10.0.0.1:2375", None, [SOCKET], WARN, "only an engine of this machine"),
    ],
)
def test_an_engine_is_told_by_where_it_was_looked_for(named, answers, sockets, result, word):
    found = judge_engine(named, answers, sockets)
    assert (found.result, word in found.found) == (result, True)
    assert bool(found.remedy) == bool(found.why) == (result != OK)


@pytest.mark.parametrize(("problem", "result"), [("", OK), ("there is none", WARN)])
def test_what_serves_folders_is_named_with_its_package_where_it_lacks(problem, result):
    found = judge_folders(problem, "/usr/lib/qemu/virtiofsd", "qemu-system-common")
    assert (found.result, "/usr/lib/qemu/virtiofsd" in found.found) == (result, True)
    assert found.remedy == ("" if result is OK else "apt-get install qemu-system-common")
