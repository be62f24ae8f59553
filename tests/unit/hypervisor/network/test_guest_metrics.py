from __future__ import annotations

from msgspec import structs

from atoll.guestnet.frames import wire
from atoll.guestnet.http import connection
from atoll.guestnet.tftp import server as tftp
from atoll.hypervisor.network.guest_metrics import families

FRAMES = wire.Counters(21, answered=1, silent=2, strangers=3, malformed=4, excess=5, unsent=6)
PACKETS = tftp.Counters(
    21, started=1, refused=2, strangers=3, malformed=4, excess=5, repeated=6, done=7, unfinished=8
)
REQUESTS = connection.Counters(connections=1, refused=2, expired=3, requests=4, malformed=5)
LAN = {"dhcp": FRAMES, "dhcp6": FRAMES, "ra": FRAMES, "tftp": PACKETS, "metadata": REQUESTS, "boot": REQUESTS}


def samples(served: dict[str, dict[str, object]]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(served)
        for sample in family.samples
    }


def test_every_frame_and_packet_of_a_guest_is_in_one_result_of_its_server():
    seen = samples({"br-lan": LAN})
    for name, server, counters in (
        ("atoll_guest_frames_total", "dhcp", FRAMES),
        ("atoll_guest_tftp_packets_total", "tftp", PACKETS),
    ):
        of = [count for key, count in seen.items() if key[:3] == (name, "br-lan", server)]
        assert sum(of) == counters.received


def test_all_that_is_counted_is_told():
    seen = samples({"br-lan": LAN})
    for server, counters in LAN.items():
        told = {result: count for (_, _, of, result), count in seen.items() if of == server}
        counted = structs.asdict(counters)
        counted.pop("received", None)
        assert told == counted


def test_a_bridge_without_a_server_says_nothing_of_it():
    seen = samples({"br-lan": LAN, "br-old": {"dhcp": FRAMES}})
    assert {server for _, bridge, server, _ in seen if bridge == "br-old"} == {"dhcp"}
