"""HTTP of a guest that is up to no good, as it sends it on one connection. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from forges.forge import Forge

METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "M-SEARCH")
METADATA_TARGETS = (
    *(
        "/datasource/SmallStack",
        "/latest/user-data",
        "/latest/dynamic/instance-identity/document",
        "/latest/api/token",
        "/openstack/latest/meta_data.json",
        "/nocloud/meta-data",
    ),
    *(
        "/",
        "/latest/",
        "/latest",
        "/latest/meta-data/",
        "//",
        "/../../etc/passwd",
        "/%2e%2e/%00",
        "/%ff",
        "/?a=b#c",
    ),
    *("http://169.254.169.254/latest/", "http://x:y@z/"),
)
HEADERS = (
    "Connection: keep-alive",
    "Connection: upgrade\r\nUpgrade: websocket",
    "X-Forwarded-For: 10.77.0.5",
    "Accept-Encoding: gzip, br",
    "Expect: 100-continue",
    "Content-Length: 0",
    "Cookie: a=b",
    "X-aws-ec2-metadata-token: \xe9",
    "X-aws-ec2-metadata-token-ttl-seconds: 60",
    "If-Modified-Since: yesterday",
    "Range: bytes=0-1",
)
FATAL = (
    "GET / HTTP/1.1\r\n\r\n",
    "FOO / HTTP/1.1\r\nHost: m\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: m\r\n\r\n",
    "GET /\xe9 HTTP/1.1\r\nHost: m\r\n\r\n",
    "GET http://[::1]:99999/ HTTP/1.1\r\nHost: m\r\n\r\n",
    "GET / HTTP/7.7\r\nHost: m\r\n\r\n",
    "CONNECT example.org:443 HTTP/1.1\r\nHost: m\r\n\r\nhello",
    "GET / HTTP/1.1\r\nHost: m\r\nHost: n\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\nContent-Length: 5\r\n\r\nhello",
    "GET / HTTP/1.1\r\nHost: m\r\nContent-Length: 500000\r\n\r\nhello",
    "GET / HTTP/1.1\r\nHost: m\r\nContent-Length: -5\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: m\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: m\r\nX: " + "y" * 9000 + "\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\n" + "A: b\r\n" * 50 + "\r\n",
    "GET / HTTP/1.1\r\n folded: header\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: m\r\n\0: \0\r\n\r\n",
    "GET /" + "a" * 5000,
    "GET / HTTP/1.1\r\nHost: m\r\nX: ",
)
PRINTABLE = [chr(byte) for byte in range(0x21, 0x7F)]
BOOT_TARGETS = (
    *("/boot.ipxe", "/image/kernel", "/image/initrd", "/file", "/", "//", "", "*", "/file?a=b", "/file#x"),
    *(
        "/../../etc/passwd",
        "/%2e%2e/%00",
        "/%ff",
        "/image/../image/kernel",
        "/netboot/file",
        "/" + "a/" * 500,
    ),
)


class HttpForge(Forge):
    def __init__(self, targets: Sequence[str], pipelined: int, seed: int) -> None:
        super().__init__(seed)
        self._targets, self._pipelined = targets, pipelined

    def connection(self) -> bytes:
        """Mostly many odd requests at once, which keep the server busy; else what it has to break off."""
        pick = self.random
        match pick.randrange(10):
            case 0:
                return self.noise(3000)
            case 1 | 2:
                return self.damaged(self._requests(pick.randrange(1, 5)))
            case 3:
                return (self._request("Via: a") + pick.choice(FATAL)).encode("latin-1")
            case 4 | 5:
                return pick.choice(FATAL).encode("latin-1")
            case _:
                return self._requests(self._pipelined)

    def _requests(self, count: int) -> bytes:
        requests = [self._request(*self._headers()) for _ in range(count)]
        return ("".join(requests) + self._request("Connection: close")).encode("latin-1")

    def _request(self, *headers: str) -> str:
        pick = self.random
        target = pick.choice(self._targets) if pick.random() < 0.6 else "/" + self._words(60)
        return "\r\n".join((f"{pick.choice(METHODS)} {target} HTTP/1.1", "Host: m", *headers, "", ""))

    def _headers(self) -> list[str]:
        chosen = self.random.sample(HEADERS, k=self.random.randrange(3))
        return [*chosen, f"X-{self.random.randrange(100)}: {self._words(200)}"]

    def _words(self, most: int) -> str:
        return "".join(self.random.choices(PRINTABLE, k=self.random.randrange(most)))
