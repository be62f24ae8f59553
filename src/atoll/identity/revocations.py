"""Which certificates a server must refuse before they expire: the lists of the CAs that it trusts.

Reads their files, when it is made and when told to look again; what is asked on every request touches nothing.
Asked there and not in the TLS handshake, because that also cuts off connections that are open already.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path

from atoll.errors import AtollError, HostFailure
from atoll.identity import revocation_list
from atoll.identity.revocation_list import RevocationList
from atoll.identity.trust import Ca
from atoll.system import files

_log = logging.getLogger(__name__)
_MAX_BYTES = 64 << 20

_Stamp = tuple[int, int, int]


class Revocations:
    """Each list is that of one issuer, and only replaced by a good and newer one of it.

    An issuer without a list is trusted only where `without_list` has its name: that its certificates end by
    expiry alone is for an operator to say, not for a file that was forgotten.
    """

    def __init__(self, paths: Sequence[Path], cas: Sequence[Ca], without_list: Collection[str] = ()) -> None:
        self._cas = tuple(cas)
        self._without_list = frozenset(without_list)
        self._stamps: dict[Path, _Stamp | None] = {}
        self._lists: dict[bytes, RevocationList] = {}
        for path in paths:
            try:
                self._stamps[path] = _stat(path)
                self._take(self._read(path))
            except (OSError, AtollError) as error:
                raise HostFailure(
                    f"reading the revocation list {path}: {_why(error)}",
                    hint="without it revoked certificates would be accepted; get it from its CA again",
                ) from error
        unlisted = {ca.name for ca in cas if ca.issuer_id not in self._lists} - self._without_list
        if unlisted:
            names = ", ".join(sorted(unlisted))
            raise HostFailure(
                f"no revocation list of CA {names}",
                hint="name its file in pki.crls; where that CA has none, name the CA in pki.without_crl",
            )

    def refusal(self, issuer: Ca, serial: int, now: datetime) -> str | None:
        """What is wrong with this certificate, as the end of a sentence about it; or None."""
        found = self._lists.get(issuer.issuer_id)
        if found is None:
            if issuer.name in self._without_list:
                return None
            return f"is not taken: there is no revocation list of its CA {issuer.name} here"
        if serial in found.serials:
            return "was revoked"
        if found.next_update is not None and now > found.next_update:
            ended = f"{found.next_update:%Y-%m-%d %H:%M:%S}Z"
            return f"is not taken: the revocation list of its CA {issuer.name} ended at {ended}"
        return None

    def look_again(self) -> None:
        """Take up lists that are new in their files. What cannot be read is logged, once."""
        for path, before in self._stamps.items():
            try:
                stamp: _Stamp | None = _stat(path)
            except OSError as error:
                if before is not None:
                    _log.warning("keeping the last good revocation list: %s: %s", path, _why(error))
                self._stamps[path] = None
                continue
            if stamp == before:
                continue
            self._stamps[path] = stamp
            try:
                fresh = self._read(path)
            except (OSError, AtollError) as error:
                _log.warning("keeping the last good revocation list: %s: %s", path, _why(error))
                continue
            if not self._take(fresh):
                _log.warning("keeping the last good revocation list: %s is older", path)

    def _take(self, fresh: dict[bytes, RevocationList]) -> bool:
        """Replaced as a whole: requests are answered meanwhile. False when something in it was older."""
        lists = dict(self._lists)
        newer = {
            issuer: each
            for issuer, each in fresh.items()
            if issuer not in lists or each.is_newer_than(lists[issuer])
        }
        self._lists = lists | newer
        return len(newer) == len(fresh)

    def _read(self, path: Path) -> dict[bytes, RevocationList]:
        return revocation_list.read_all(files.read_limited(path, _MAX_BYTES), self._cas)


def _stat(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _why(error: OSError | AtollError) -> str:
    return error.brief if isinstance(error, AtollError) else (error.strerror or str(error))
