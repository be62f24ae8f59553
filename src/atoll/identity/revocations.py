"""Which certificates a server must refuse before they expire: the CA's list, read again as it changes.

Reads the file (a stat at most once a second) and the monotonic clock. Asked on every request and not in the
TLS handshake, because that also cuts off connections that are open already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from atoll.errors import AtollError, HostFailure
from atoll.identity import certificates, revocation_list
from atoll.system import clock, files

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 1.0
_MAX_BYTES = 64 << 20

_Stamp = tuple[int, int, int]


class Revocations:
    """A list is only replaced by a good and newer one: nothing revoked comes back by accident."""

    def __init__(
        self, crl_path: Path, ca_path: Path, *, monotonic: Callable[[], float] = clock.monotonic
    ) -> None:
        self._path = crl_path
        self._monotonic = monotonic
        self._looked_at = monotonic()
        try:
            self._ca = certificates.from_pem(ca_path.read_bytes())
            self._stamp = self._stat()
            self._list = self._read()
        except (OSError, AtollError) as error:
            why = error.brief if isinstance(error, AtollError) else error.strerror
            raise HostFailure(
                f"reading the revocation list {crl_path}: {why}",
                hint="without it revoked certificates would be accepted; restore it from the CA's crl.pem",
            ) from error

    def is_revoked(self, serial: int) -> bool:
        if self._monotonic() - self._looked_at >= _LOOK_AGAIN_S:
            self._look_again()
        return serial in self._list.serials

    def _look_again(self) -> None:
        self._looked_at = self._monotonic()
        try:
            stamp = self._stat()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            fresh = self._read()
        except (OSError, AtollError) as error:
            _log.warning("keeping the last good revocation list: %s: %s", self._path, error)
            return
        if fresh.number < self._list.number:
            _log.warning("keeping the last good revocation list: %s is older", self._path)
            return
        self._list = fresh

    def _stat(self) -> _Stamp:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> revocation_list.RevocationList:
        return revocation_list.read(files.read_limited(self._path, _MAX_BYTES), self._ca)
