"""The guest agent's parsers, compiled for this host under the sanitizers."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.machine.qemu.channel import order
from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.codec import BOOT_REPLY, Code, Message
from atoll.guestnet.frames import ipv4 as frames
from atoll.guestnet.frames.ipv4 import Datagram
from atoll.images.appliance import GUEST

HARNESS = Path(__file__).with_name("guest_parsers.c")
PURE = (
    "channel_message.c",
    "dhcp_message.c",
    "hands_message.c",
    "http.c",
    "json.c",
    "netlink_message.c",
    "sha256.c",
)


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


OFFER, ACK, NAK = 2, 5, 6
CLIENT = bytes.fromhex("525400000001")


def answer_packet(ports: tuple[int, int] = (67, 68), **changes: Any) -> bytes:
    """An acknowledgement in an IP packet; `changes` are to its message, or its packet."""
    message = Message(
        op=changes.get("op", BOOT_REPLY),
        htype=changes.get("htype", 1),
        hlen=changes.get("hlen", 6),
        xid=changes.get("xid", 7 << 24),  # in the order of the host there
        chaddr=changes.get("mac", CLIENT).ljust(16, b"\0"),
        yiaddr="10.0.0.5",
        options={Code.MESSAGE_TYPE: bytes([ACK]), Code.SERVER_ID: b"\x0a\0\0\x01"},
    )
    macs = "52:54:00:00:00:09", "52:54:00:00:00:01"
    packet = bytearray(
        frames.build(Datagram(*macs, "10.0.0.1", "255.255.255.255", *ports, codec.build(message)))[14:]
    )
    packet[6] |= changes.get("more_fragments", 0) << 5
    packet[3] = (packet[3] + changes.get("excess", 0)) % 256
    return bytes(packet)


@pytest.mark.parametrize(
    ("packet", "type_"),
    {
        "a server's": (answer_packet(), ACK),
        "from another port": (answer_packet((5000, 68)), 0),
        "from a client's port": (answer_packet((68, 68)), 0),
        "to another port": (answer_packet((67, 67)), 0),
        "to another machine": (answer_packet(mac=bytes.fromhex("525400000002")), 0),
        "to another question": (answer_packet(xid=8 << 24), 0),
        "to another kind of link": (answer_packet(htype=6), 0),
        "with a longer address": (answer_packet(hlen=16), 0),
        "a question": (answer_packet(op=1), 0),
        "a piece": (answer_packet(more_fragments=1), 0),
        "cut short": (answer_packet(excess=1), 0),
    }.values(),
)
def test_an_answer_is_taken_from_a_servers_port_and_to_our_own_question_only(
    parsers: Path, packet: bytes, type_: int
) -> None:
    assert int(run(parsers, "packet", data=packet).stdout) == type_


@pytest.mark.parametrize(
    ("type_", "server", "address", "by_anybody", "taken"),
    [
        (OFFER, 9, 6, 0, True),
        (OFFER, 0, 6, 0, False),
        (ACK, 9, 5, 0, True),
        (ACK, 8, 5, 0, False),
        (ACK, 0, 5, 0, False),
        (ACK, 9, 6, 0, False),
        (ACK, 8, 5, 1, True),
        (ACK, 8, 6, 1, False),
        (NAK, 9, 0, 0, True),
        (NAK, 8, 0, 0, False),
        (NAK, 8, 0, 1, True),
        (0, 9, 5, 0, False),
        (4, 9, 5, 1, False),
    ],
)
def test_an_answer_is_of_the_server_and_for_the_address_that_were_asked(
    parsers: Path, type_: int, server: int, address: int, by_anybody: int, taken: bool
) -> None:
    done = run(parsers, "answers", *map(str, (type_, server, address, by_anybody)))
    assert int(done.stdout) == taken


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


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"AQAEAB-_42==", "AQAEAB-_42=="),
        (b"token\r\n", "token"),
        (b"", None),
        (b"\n", None),
        (b"two words", None),
        (b"one\r\nX-Header: two", None),
        (b"caf\xc3\xa9", None),
        (b"nul\0", None),
        (b"x" * 15, "x" * 15),
        (b"x" * 16, None),
    ],
)
def test_a_token_is_one_word_that_a_header_can_hold(parsers: Path, body: bytes, word: str | None) -> None:
    done = run(parsers, "word", data=body)
    assert (done.stdout.decode() if done.returncode == 0 else None) == word, done.stderr


MAC = bytes.fromhex("525400000002")


def link(
    name: bytes, *, message: int = 16, family: int = 0, kind: int = 1, index: int = 3, mac: bytes = MAC
) -> bytes:
    """What the kernel says of an interface."""
    body = struct.pack("=BxHiII", family, kind, index, 0, 0) + attribute(1, mac) + attribute(3, name)
    return struct.pack("=IHHII", 16 + len(body), message, 0, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        (link(b"eth1\0"), "there 3 eth1 02 0"),
        (link(b"eth12"), "there 3 eth12 02 0"),
        (link(b"eth1\0", message=17), "gone 3 eth1 02 0"),
        (link(b"eth0\0"), "none 0  00 0"),
        (link(b"veth1\0"), "none 0  00 0"),
        (link(b"eth1.5\0"), "none 0  00 0"),
        (link(b"eth\0"), "none 0  00 0"),
        (link(b"eth" + b"1" * 13), "none 0  00 0"),
        (link(b"eth1\0", family=7, message=17), "none 0  00 0"),
        (link(b"eth1\0", kind=772), "none 0  00 0"),
        (link(b"eth1\0", index=0), "none 0  00 0"),
        (link(b"eth1\0", mac=MAC * 2), "none 0  00 0"),
        (struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -17), "refused 0  00 -17"),
        (link(b"eth1\0")[:-1], ""),
        (b"", ""),
    ],
)
def test_only_further_ethernet_interfaces_are_heard_of(parsers: Path, said: bytes, understood: str) -> None:
    assert run(parsers, "links", data=said).stdout.decode().strip() == understood


def test_messages_of_the_kernel_are_read_one_after_the_other(parsers: Path) -> None:
    said = link(b"lo\0", kind=772) + link(b"eth0\0") + link(b"eth1\0", index=4) + link(b"eth2\0", index=5)
    kinds = [line.split()[:2] for line in run(parsers, "links", data=said).stdout.decode().splitlines()]
    assert kinds == [["none", "0"], ["none", "0"], ["there", "4"], ["there", "5"]]


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
