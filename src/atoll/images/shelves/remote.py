"""Objects in a store that obstore knows: S3, Google's, Azure's, or memory. Talks to that store.

Credentials come from where its own tools take them: the environment, or the machine's role. None is in a URL, so none
is in a command line, a record or an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from atoll.errors import Denied, HostFailure, Invalid, Unreachable
from atoll.plan.collection import Kept

SCHEMES = ("s3", "gs", "az", "memory")
TOGETHER = 16
"""Calls at a time: with objects of 4 MiB at most, 64 MiB are under way."""
_RETRY: dict[str, Any] = {"max_retries": 4}
_LONGEST_WHY = 200


class RemoteShelf:
    """One bucket, or one folder in it."""

    together = TOGETHER

    def __init__(self, url: str) -> None:
        self.name = check_url(url)
        try:
            self._store: Any = from_url(url) if _is_memory(url) else _connected(url)
        except (exceptions.BaseError, ValueError) as error:
            raise Invalid(
                "store",
                url,
                _why(error),
                hint="name it as s3://bucket/folder, gs://bucket/folder or az://account/container",
            ) from None
        self._pool = ThreadPoolExecutor(TOGETHER, "objects")

    def put(self, objects: Sequence[tuple[str, bytes]]) -> None:
        # A put of such a store is one request: the object is there whole, or as it was before.
        list(self._pool.map(self._put, objects))

    def _put(self, item: tuple[str, bytes]) -> None:
        with self._asking(f"writing object {item[0]}"):
            obstore.put(self._store, _key(item[0]), item[1], use_multipart=False)

    def read(self, object_id: str) -> bytes | None:
        with self._asking(f"reading object {object_id}"):
            try:
                return bytes(obstore.get(self._store, _key(object_id)).bytes())
            except FileNotFoundError:
                return None

    def there(self, object_ids: Sequence[str]) -> dict[str, Kept]:
        found = self._pool.map(self._look, object_ids)
        return {kept.id: kept for kept in found if kept is not None}

    def _look(self, object_id: str) -> Kept | None:
        with self._asking(f"looking for object {object_id}"):
            try:
                return _kept(obstore.head(self._store, _key(object_id)))
            except FileNotFoundError:
                return None

    def list(self) -> Iterator[Kept]:
        with self._asking("listing"):
            for page in obstore.list(self._store):
                yield from map(_kept, page)

    def remove(self, object_ids: Sequence[str]) -> None:
        list(self._pool.map(self._remove, object_ids))

    def _remove(self, object_id: str) -> None:
        with self._asking(f"removing object {object_id}"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, _key(object_id))

    def close(self) -> None:
        self._pool.shutdown()

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise Denied(
                f"{doing} in {self.name}: {_why(error)}",
                hint="give this process credentials of the store in its environment, as its own tools take them",
            ) from None
        except exceptions.GenericError as error:
            raise Unreachable(
                f"{doing} in {self.name}: {_why(error)}", hint="see whether it answers"
            ) from None
        except exceptions.BaseError as error:
            raise HostFailure(f"{doing} in {self.name}: {_why(error)}") from None


def check_url(url: str) -> str:
    """The URL of a store, without anything in it that is nobody's business. Pure."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        hint = "a directory, or a URL such as s3://bucket/folder"
        raise Invalid("store", parts.scheme, f"must be one of {', '.join(SCHEMES)}", hint=hint)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Invalid(
            "store",
            f"{parts.scheme}://…",
            "must name the store, and nothing else",
            hint="credentials and settings are taken from the environment",
        )
    return url


def _connected(url: str) -> Any:
    return from_url(url, retry_config=_RETRY)  # type: ignore[call-overload]


def _is_memory(url: str) -> bool:
    return urlsplit(url).scheme == "memory"


def _key(object_id: str) -> str:
    return f"{object_id[:2]}/{object_id}"


def _kept(meta: Any) -> Kept:
    changed: datetime = meta["last_modified"]
    return Kept(str(meta["path"]).rpartition("/")[2], int(meta["size"]), changed.timestamp())


def _why(error: Exception) -> str:
    """The first line: those after it are the library's own memory of the call."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_WHY]
