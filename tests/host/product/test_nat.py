"""Guests and the world outside: with --nat they get out through their host, without it they do not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.host.product.conftest import Room

OUTSIDE, HOST = "198.51.100.1", "198.51.100.2"
FETCH = f"#!/bin/sh\ntimeout 3 wget -q -O - http://{OUTSIDE}/hello\n"

# Notes who asks, one line each.
SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(sys.argv[2], "a") as log:
            log.write(self.client_address[0] + "\\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from outside\\n")

server = http.server.HTTPServer((sys.argv[1], 80), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def build_outside(room: Room) -> None:
    """The room plays the host: its default route goes to a namespace with a web server, and no further."""
    room.run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
    room.run("ip", "netns", "add", "outside")
    room.run("ip", "link", "add", "wan", "type", "veth", "peer", "name", "lan", "netns", "outside")
    room.run("ip", "address", "add", f"{HOST}/24", "dev", "wan")
    room.run("ip", "link", "set", "wan", "up")
    room.run("ip", "route", "add", "default", "via", OUTSIDE)
    room.run("ip", "-n", "outside", "address", "add", f"{OUTSIDE}/24", "dev", "lan")
    room.run("ip", "-n", "outside", "link", "set", "lan", "up")
    room.start(
        "ip", "netns", "exec", "outside", sys.executable, "-c", SERVER, OUTSIDE, str(room.place / "asked")
    )


def test_guests_get_out_with_nat_and_only_with_it(room: Room) -> None:
    cloud = room.clouds[0]
    build_outside(room)
    before = room.snapshot()
    room.path("fetch").write_text(FETCH)
    cloud("up")
    vm = cloud.create("web", "--user-data", str(room.place / "fetch"))
    assert room.until_status(vm["ip"]) != 0

    cloud("up", "--nat")
    cloud("vm", "reboot", "web", "--wait-for", "port:80")
    assert room.until_status(vm["ip"]) == 0
    assert "hello from outside" in cloud("vm", "log", "web").stdout
    # Outside sees the host, and nothing of what is behind it.
    assert room.path("asked").read_text().split() == [HOST]
    assert room.snapshot()["switches"] != before["switches"]
    tables = room.run("nft", "list", "tables").splitlines()
    assert tables == [f"table inet {cloud.status()['namespace']}"]

    cloud("down")
    after = room.snapshot()
    assert after["firewall"] == before["firewall"] == []
    assert {name: after["switches"][name] for name in before["switches"]} == before["switches"]
    assert room.ask(vm["ip"])["ip"] == vm["ip"]
