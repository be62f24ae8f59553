"""The guest agent's parsers, compiled for this host under the sanitizers."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from pathlib import Path

import pytest

from atoll.drivers.machine.qemu.channel import order
from atoll.images.appliance import GUEST

HARNESS = Path(__file__).with_name("guest_parsers.c")
PURE = ("channel_message.c", "dhcp_message.c", "http.c", "json.c", "sha256.c")


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("parsers") / "parsers"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(HARNESS), *(str(GUEST / name) for name in PURE)]
    subprocess.run(["gcc", *flags, *sanitizers, f"-I{GUEST}", "-o", program, *sources], check=True)
    return program


def run(program: Path, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program, *words], input=data, capture_output=True, timeout=60)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_bytes_from_the_network_break_a_parser(parsers: Path, seed: int) -> None:
    done = run(parsers, "fuzz", str(seed), "200000")
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("length", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 1 << 20])
def test_the_hash_is_sha256(parsers: Path, length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert run(parsers, "sha256", data=data).stdout.decode().strip() == hashlib.sha256(data).hexdigest()


def test_a_lease_is_read_and_classless_routes_win_over_the_router(parsers: Path) -> None:
    # 24 bits of 192.168.7.0, and no bits: the default route of the classless list, not option 3's.
    assert run(parsers, "lease").stdout.decode().split() == [
        *("5", "web", "1400", "3600", "2"),
        *("00000000/00000000>10.0.0.1", "c0a80700/ffffff00>10.0.0.9"),
    ]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"instance_id": "i-1"}, "i-1"),
        ({"other": {"instance_id": "inner"}, "instance_id": "outer"}, "outer"),
        ({"list": ["instance_id", {"instance_id": "inner"}]}, None),
        ({"note": 'say "instance_id": "no"', "instance_id": "yes"}, "yes"),
        ({"instance_id": 7}, None),
        ({"instance_id": "with\nnewline"}, None),
        ({"instance_id": "x" * 64}, None),
        ([], None),
    ],
)
def test_only_the_outermost_member_is_found(parsers: Path, document: object, found: str | None) -> None:
    done = run(parsers, "member", "instance_id", data=json.dumps(document).encode())
    assert (done.stdout.decode() if done.returncode == 0 else None) == found, done.stderr


SEED = bytes(range(32)).hex()


def read_order(parsers: Path, line: str) -> str:
    return run(parsers, "order", data=line.encode()).stdout.decode()


@pytest.mark.parametrize("kind", ["identity", "rehearse"])
def test_what_the_host_says_is_what_the_guest_understands(parsers: Path, kind: str) -> None:
    line = order(kind, "02:00:0a:01:00:05", "web-1", bytes(range(32)), 1_700_000_000_123_456_789)  # type: ignore[arg-type]

    assert read_order(parsers, line.decode().rstrip()) == f"{kind} 0205 web-1 001f 1700000000123456789"


def test_to_park_needs_no_more_words(parsers: Path) -> None:
    assert read_order(parsers, "park") == "park"
    assert read_order(parsers, "park now") == "none"


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        "identity",
        "identity ",
        f"identity 02:00:0a:01:00:05 web {SEED}",
        f"identity 02:00:0a:01:00:05 web {SEED} ",
        f"identity 02:00:0a:01:00:05 web {SEED} 17 more",
        f"identity 02:00:0a:01:00:05  web {SEED} 17",
        f"identity 02:00:0a:01:00 web {SEED} 17",
        f"identity 02-00-0a-01-00-05 web {SEED} 17",
        f"identity 02:00:0A:01:00:05 web {SEED} 17",
        f"identity 02:00:0a:01:00:05 we;b {SEED} 17",
        f"identity 02:00:0a:01:00:05 {'w' * 64} {SEED} 17",
        f"identity 02:00:0a:01:00:05 web {SEED[:-2]} 17",
        f"identity 02:00:0a:01:00:05 web {SEED}00 17",
        f"identity 02:00:0a:01:00:05 web {SEED[:-1]}g 17",
        f"identity 02:00:0a:01:00:05 web {SEED} -17",
        f"identity 02:00:0a:01:00:05 web {SEED} {10**20}",
        f"Identity 02:00:0a:01:00:05 web {SEED} 17",
        f"identity 02:00:0a:01:00:05 web {SEED} {'1' * 300}",
    ],
)
def test_an_order_that_is_wrong_in_any_way_is_none(parsers: Path, line: str) -> None:
    assert read_order(parsers, line) == "none"
