"""What the services under test share: a CA, and certificates for all who take part."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll.identity import tls
from atoll.identity.authority import Authority, Issued
from atoll.identity.peer import PeerReader
from atoll.identity.revocations import Revocations
from atoll.identity.trust import read_cas


class Pki:
    """A CA, a server on loopback and any number of users. Keys are made once for each of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "ca", "test")
        self._server = self._keep("server", self.authority.issue_server(["127.0.0.1", "localhost"]))
        self._users: dict[str, ssl.SSLContext] = {}

    def revocations(self) -> Revocations:
        return Revocations([self.authority.crl_path], read_cas(self.authority.cert_pem))

    def peers(self, revocations: Revocations | None = None) -> PeerReader:
        return PeerReader(read_cas(self.authority.cert_pem), revocations or self.revocations())

    def server(self) -> ssl.SSLContext:
        return tls.server_context(*self._server, self.authority.cert_path)

    def certificate(self) -> tls.ServerCertificate:
        """What the server shows, as it is watched."""
        return tls.ServerCertificate(self.server(), *self._server)

    def user(
        self,
        name: str,
        groups: Sequence[str] = (),
        methods: Sequence[str] = (),
        limit: Sequence[str] | None = None,
    ) -> ssl.SSLContext:
        limits = () if limit is None else ("limit", *limit)
        key = f"{name}-{'-'.join((*groups, *methods, *limits))}".replace("*", "any")
        if key not in self._users:
            files = self._keep(key, self.authority.issue_user(name, groups, methods, limit=limit))
            self._users[key] = tls.client_context(self.authority.cert_path, *files)
        return self._users[key]

    def user_files(self, name: str) -> tuple[Path, Path]:
        self.user(name)
        return self.directory / f"{name}-.pem", self.directory / f"{name}-.key"

    def nobody(self) -> ssl.SSLContext:
        return tls.client_context(self.authority.cert_path)

    def _keep(self, name: str, issued: Issued) -> tuple[Path, Path]:
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        cert.write_bytes(issued.cert_pem)
        key.touch(0o600)
        key.write_bytes(issued.key_pem)
        return cert, key


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def foreign_pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Another cloud's."""
    return Pki(tmp_path_factory.mktemp("foreign"))
