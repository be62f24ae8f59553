"""Names, as guests look them up: each other's from their node, all others by way of the host where NAT is on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.host.product.conftest import Room

# The host's own resolver, where only the host reaches it. Answers everything, and notes what it was asked.
RESOLVER = """
import socket, sys
import dns.message, dns.rdatatype, dns.rrset

port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("127.0.0.53", 53))
print("ready", flush=True)
while True:
    data, peer = port.recvfrom(4096)
    query = dns.message.from_wire(data)
    name = query.question[0].name
    with open(sys.argv[1], "a") as log:
        log.write(f"{name}\\n")
    reply = dns.message.make_response(query)
    if query.question[0].rdtype == dns.rdatatype.A:
        reply.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.80"))
    port.sendto(reply.to_wire(), peer)
"""


def test_a_guest_looks_up_its_neighbours_and_with_nat_all_others(room: Room) -> None:
    cloud = room.clouds[0]
    asked = room.path("asked")
    asked.write_text("")
    room.path("resolv.conf").write_text("nameserver 127.0.0.53\n")
    room.run("mount", "--bind", str(room.place / "resolv.conf"), "/etc/resolv.conf")
    room.start(sys.executable, "-c", RESOLVER, str(room.place / "asked"))

    cloud("up", "--ipv6")
    db = cloud.create("db")
    cloud.create("web")
    with cloud.shell("web") as shell:
        assert "nameserver 169.254.169.254" in shell.run("cat /etc/resolv.conf")
        for name in ("db", "db.atoll.internal"):
            found = shell.run(f"nslookup {name}")
            assert f"Address: {db['ip']}" in found
            assert f"Address: {db['ip6']}" in found
        assert "name = db.atoll.internal" in shell.run(f"nslookup {db['ip']}")
        assert "name = db.atoll.internal" in shell.run(f"nslookup {db['ip6']}")
        assert " 0% packet loss" in shell.run("ping -c 1 -W 5 db")
        assert "NXDOMAIN" in shell.run("nslookup nobody.atoll.internal")
        # Without NAT nothing is asked outside.
        assert "REFUSED" in shell.run("nslookup www.example.test")
    assert asked.read_text() == ""

    cloud("up", "--nat")
    with cloud.shell("web") as shell:
        assert "Address: 192.0.2.80" in shell.run("nslookup www.example.test")
        assert f"Address: {db['ip']}" in shell.run("nslookup db")
        cloud.destroy("db")
        assert "NXDOMAIN" in shell.run("nslookup db.atoll.internal")
    assert set(asked.read_text().split()) == {"www.example.test."}
