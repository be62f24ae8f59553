"""What a guest that is up to no good sends to DHCPv6 servers and to routers, as frames. Pure."""

from __future__ import annotations

import struct
from socket import AF_INET6, inet_pton

from atoll.guestnet.dhcp6 import codec
from atoll.guestnet.dhcp6.codec import Code, Kind, Message, Option
from atoll.guestnet.frames import ipv6
from atoll.guestnet.frames.ipv6 import Datagram, Packet
from atoll.model.network import METADATA_IP6, link_local
from forges.forge import Forge

ALL_SERVERS, ALL_ROUTERS = "ff02::1:2", "ff02::2"
_OPTION_REQUEST, _PREFERENCE, _ELAPSED, _RELAYED = 6, 7, 8, 9
_RELAY_FORWARD = 12
_LARGEST = 1440
_MOST_NESTED = 4


class _Sender(Forge):
    def __init__(self, mac: str, ip6: str, service_mac: str, seed: int) -> None:
        """`ip6` is the guest's own address, `service_mac` that of the port behind which its servers are."""
        super().__init__(seed)
        self.mac, self.ip6, self.service_mac = mac, ip6, service_mac
        self.source = link_local(mac)

    def packet(self, target: str, protocol: int, payload: bytes, hop_limit: int) -> bytes:
        pick = self.random
        source = self.ip6 if self.one_in(8) else self.source
        # To the group it goes to every port of the bridge; mostly nobody else is to be bothered.
        mac = ipv6.multicast_mac(target) if self.one_in(16) else self.service_mac
        frame = ipv6.build(Packet(self.mac, mac, source, target, protocol, payload, hop_limit))
        if self.one_in(40):
            # A length that is not that of what follows.
            size = pick.choice((0, 1, 65535, len(payload) - 1, len(payload) + 1))
            frame = frame[:18] + max(0, size).to_bytes(2, "big") + frame[20:]
        if self.one_in(60):
            frame = frame[:20] + bytes((pick.choice((0, 43, 44, 50, 51, 60, 135)),)) + frame[21:]
        return frame


class Dhcp6Forge(_Sender):
    def frame(self) -> bytes:
        pick = self.random
        payload = self.worn(self.message())[:_LARGEST]
        datagram = ipv6.udp(self.source, ALL_SERVERS, Datagram(546, 547, payload))
        if self.one_in(30):
            datagram = datagram[:4] + pick.randrange(1 << 16).to_bytes(2, "big") + datagram[6:]
        return self.packet(ALL_SERVERS, ipv6.UDP, datagram, 64)

    def message(self) -> bytes:
        pick = self.random
        if self.one_in(20):
            return self._relayed(pick.randrange(1, 20))
        kind = pick.choice(tuple(Kind)) if pick.random() < 0.9 else pick.randrange(256)
        client = struct.pack("!HH", 3, 1) + bytes.fromhex(self.mac.replace(":", ""))
        options: list[Option] = [(Code.CLIENT_ID, client if pick.random() < 0.9 else self.noise(140))]
        options += [self._option(_MOST_NESTED) for _ in range(pick.randrange(8))]
        if self.one_in(20):
            options += [(pick.randrange(65536), b"")] * pick.randrange(100, 200)
        pick.shuffle(options)
        return codec.build(Message(kind, pick.randbytes(3), tuple(options)))

    def _option(self, nested: int) -> Option:
        pick = self.random
        number = pick.choice((0, 1, 0xFFFFFFFF, pick.getrandbits(32)))
        match pick.randrange(10):
            case 0 | 1 | 2 if nested:
                inner = [self._option(nested - 1) for _ in range(pick.randrange(4))]
                code, value = codec.association(number, number, 0, *inner)
                return pick.choice((code, code, Code.IA_TA, Code.IA_PD)), value
            case 3 | 4:
                ip = pick.choice((self.ip6, self.source, "::", "ff02::1", METADATA_IP6))
                code, value = codec.address(ip, number, number)
                return code, value if pick.random() < 0.9 else self.cut(value)
            case 5:
                server = struct.pack("!HH", 3, 1) + bytes.fromhex(self.service_mac.replace(":", ""))
                return Code.SERVER_ID, pick.choice((server, server, b"", self.noise(140)))
            case 6:
                return pick.choice((_OPTION_REQUEST, _PREFERENCE, _ELAPSED)), self.noise(40)
            case 7:
                return Code.RAPID_COMMIT, pick.choice((b"", b"x"))
        return pick.choice((*Code, pick.randrange(65536))), self.noise(60)

    def _relayed(self, hops: int) -> bytes:
        """A message in a message in a message: none of them is for a server on the link itself."""
        message = codec.build(Message(Kind.SOLICIT, bytes(3)))
        for hop in range(hops):
            head = bytes((_RELAY_FORWARD, hop)) + inet_pton(AF_INET6, self.ip6) * 2
            message = head + struct.pack("!HH", _RELAYED, len(message)) + message
        return message


class SolicitationForge(_Sender):
    """For routers."""

    def frame(self) -> bytes:
        pick = self.random
        body = bytes(4) + b"".join(self._option() for _ in range(pick.randrange(6)))
        payload = ipv6.icmp(self.source, ALL_ROUTERS, 133, self.worn(body))
        if self.one_in(8):
            payload = payload[:1] + self.worn(payload[1:])
        return self.packet(
            ALL_ROUTERS, ipv6.ICMPV6, payload[:_LARGEST], pick.choice((255, 255, 255, 255, 64, 0))
        )

    def _option(self) -> bytes:
        pick = self.random
        kind = pick.choice((1, 2, 3, 4, 5, 14, 24, 25, 31, pick.randrange(256)))
        value = self.noise(40)
        size = (2 + len(value) + 7) // 8 if pick.random() < 0.8 else pick.choice((0, 1, 255))
        return bytes((kind, size)) + value.ljust(8 * max(1, (2 + len(value) + 7) // 8) - 2, b"\0")
