"""The API of a Docker Engine, over its Unix socket. Effects: requests to the engine.

Podman's socket answers too. Which version of the API is spoken is agreed on with the first request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from atoll.drivers.machine.docker import parse
from atoll.drivers.machine.docker.config import (
    API_VERSION,
    DETACH_KEYS,
    EXEC_API_VERSION,
    INIT,
    LABEL,
)
from atoll.errors import Conflict, HostFailure, NotFound, TimedOut, Unreachable
from atoll.system import files

T = TypeVar("T")

STREAM_LIMIT = 256 << 10
TIMEOUT_S = 30.0
IMPORT_TIMEOUT_S = 600.0
_CHUNK = 1 << 20
_HEAD_LIMIT = 16 * 1024

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Query = Mapping[str, str] | Sequence[tuple[str, str]]


class Engine:
    """One engine. NotFound, Conflict, Unreachable, TimedOut and HostFailure say what it said."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None
        self._version: parse.Version | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def version(self) -> parse.Version:
        if self._version is None:
            body = await self._send("GET", "/version", doing="asking for its version")
            self._version = _decoded(body, parse.Version)
        return self._version

    async def info(self) -> parse.Info:
        return _decoded(await self._call("GET", "/info", doing="asking what it is"), parse.Info)

    # --- images

    async def has_image(self, reference: str) -> bool:
        try:
            await self._call("GET", f"/images/{reference}/json", doing="looking for an image")
        except NotFound:
            return False
        return True

    async def import_image(
        self, content: AsyncIterator[bytes], reference: str, label: tuple[str, str]
    ) -> None:
        """Hand it a root file system, and what to start in it. `label`: a name and a value, to find it by."""
        changes = [f'CMD ["{INIT}"]', f"LABEL {label[0]}={label[1]}"]
        # The tag within `repo`: Podman takes no notice of one beside it.
        query = [("fromSrc", "-"), ("repo", reference), ("message", "imported by Atoll")]
        query += [("changes", change) for change in changes]
        answer = await self._call(
            "POST",
            "/images/create",
            doing="handing it an image",
            query=query,
            data=content,
            timeout_s=IMPORT_TIMEOUT_S,
        )
        parse.check_import(answer)

    async def images(self, label: str = LABEL) -> tuple[parse.Summary, ...]:
        """All images with this label, or with this value of it: by default those that are of one machine of Atoll."""
        return await self._listed("/images/json", "listing images", label)

    async def add_reference(self, image: str, reference: str) -> None:
        """Another name for an image, which keeps it. NotFound: it has just gone."""
        repository, _, tag = reference.rpartition(":")
        query = {"repo": repository, "tag": tag}
        await self._call("POST", f"/images/{image}/tag", doing=f"naming image {reference}", query=query)

    async def remove_reference(self, reference: str) -> None:
        """The image goes with the last of them, unless a container is made of it. Gone is fine."""
        with contextlib.suppress(NotFound, Conflict):
            await self._call("DELETE", f"/images/{reference}", doing=f"removing image {reference}")

    async def remove_image(self, reference: str) -> None:
        """Whoever refers to it. Gone is fine."""
        with contextlib.suppress(NotFound):
            doing = f"removing image {reference}"
            await self._call("DELETE", f"/images/{reference}", doing=doing, query={"force": "true"})

    # --- containers

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """The id of the new container."""
        path, doing = "/containers/create", f"creating container {name}"
        answer = await self._call(
            "POST", path, doing=doing, query={"name": name}, data=msgspec.json.encode(body)
        )
        return str(_decoded(answer, dict[str, Any])["Id"])

    async def inspect(self, name: str) -> parse.Container | None:
        try:
            body = await self._call("GET", f"/containers/{name}/json", doing=f"looking at container {name}")
        except NotFound:
            return None
        return _decoded(body, parse.Container)

    async def list(self) -> tuple[parse.Summary, ...]:
        """All containers of Atoll, whoever's and in whatever state."""
        return await self._listed("/containers/json", "listing containers", LABEL)

    async def _listed(self, path: str, doing: str, label: str) -> tuple[parse.Summary, ...]:
        query = {"all": "true", "filters": msgspec.json.encode({"label": [label]}).decode()}
        return _decoded(await self._call("GET", path, doing=doing, query=query), tuple[parse.Summary, ...])

    async def start(self, name: str) -> None:
        await self._call("POST", f"/containers/{name}/start", doing=f"starting container {name}")

    async def update(self, name: str, limits: Mapping[str, Any]) -> None:
        """Give it other limits, from now on."""
        doing = f"limiting container {name}"
        await self._call("POST", f"/containers/{name}/update", doing=doing, data=msgspec.json.encode(limits))

    async def export(self, name: str) -> AsyncIterator[bytes]:
        """Its root file system as a tar archive, piece by piece."""
        path, doing = (
            f"{await self._prefix()}/containers/{name}/export",
            f"reading the root of container {name}",
        )
        try:
            async with self._request("GET", path, timeout_s=IMPORT_TIMEOUT_S) as response:
                if response.status >= 400:
                    raise _refused(
                        response.status, f"container engine: {doing}: {parse.said(await response.read())}"
                    )
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def kill(self, name: str, signal: str) -> None:
        """Send it a signal. Conflict when it does not run."""
        doing = f"sending {signal} to container {name}"
        await self._call("POST", f"/containers/{name}/kill", doing=doing, query={"signal": signal})

    async def pause(self, name: str) -> None:
        """Hold it still. Conflict when it does not run, or is held already."""
        await self._call("POST", f"/containers/{name}/pause", doing=f"holding container {name} still")

    async def unpause(self, name: str) -> None:
        """Let it go on. Conflict when it is not held."""
        await self._call("POST", f"/containers/{name}/unpause", doing=f"letting container {name} go on")

    async def wait(self, name: str) -> int:
        """Its exit status, once it does not run."""
        body = await self._call("POST", f"/containers/{name}/wait", doing=f"waiting for container {name}")
        return int(_decoded(body, dict[str, Any])["StatusCode"])

    async def remove(self, name: str) -> None:
        """End it if it runs, and leave nothing of it. Gone is fine."""
        for pause_s in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, None):
            try:
                query = {"force": "true", "v": "true"}
                doing = f"removing container {name}"
                await self._call("DELETE", f"/containers/{name}", doing=doing, query=query)
            except NotFound:
                return
            except Conflict:  # somebody removes it just now
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)

    async def logs(self, name: str, since_s: float) -> bytes:
        """What it wrote since then, as far as the engine keeps it."""
        query = {"stdout": "true", "stderr": "true", "since": f"{since_s:.9f}"}
        doing = f"reading what container {name} wrote"
        return await self._call("GET", f"/containers/{name}/logs", doing=doing, query=query)

    async def attach(self, name: str) -> Stream:
        """Its terminal, both ways, from now on."""
        flags = "&".join(f"{one}=1" for one in ("stream", "stdin", "stdout", "stderr"))
        path = f"/containers/{quote(name)}/attach?{flags}&detachKeys={quote(DETACH_KEYS)}"
        return await self._taken_over(await self._prefix() + path, b"", f"attaching to container {name}")

    # --- commands in containers

    async def create_exec(self, name: str, body: Mapping[str, Any]) -> str:
        """The id of a command that is to be run in a container."""
        path, doing = f"{await self._exec_prefix()}/containers/{name}/exec", f"running a command in {name}"
        answer = await self._send("POST", path, doing=doing, data=msgspec.json.encode(body))
        return str(_decoded(answer, dict[str, Any])["Id"])

    async def start_exec(self, number: str, body: Mapping[str, Any]) -> Stream:
        """Run it; its streams."""
        path = f"{await self._exec_prefix()}/exec/{quote(number)}/start"
        return await self._taken_over(path, msgspec.json.encode(body), "running a command")

    async def inspect_exec(self, number: str) -> parse.Exec:
        doing = "looking at a command"
        return _decoded(await self._call("GET", f"/exec/{number}/json", doing=doing), parse.Exec)

    async def resize_exec(self, number: str, rows: int, columns: int) -> None:
        query = {"h": str(rows), "w": str(columns)}
        await self._call("POST", f"/exec/{number}/resize", doing="resizing a terminal", query=query)

    async def _exec_prefix(self) -> str:
        """Of a version in which the size of a terminal is known when it begins, where the engine knows that one."""
        return f"/v{parse.choose_version(EXEC_API_VERSION, await self.version())}"

    async def _taken_over(self, path: str, body: bytes, doing: str) -> Stream:
        """A connection of which only the beginning is HTTP."""
        request = (
            f"POST {path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            reader, writer = await files.connect_unix(self.socket, STREAM_LIMIT)
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(request.encode() + body)
                head = await reader.readuntil(b"\r\n\r\n")
            status = head.split(maxsplit=2)[1]
            if status not in (b"101", b"200"):
                said = head.splitlines()[0].decode(errors="replace")
                raise _refused(int(status) if status.isdigit() else 0, f"{doing}: {said}")
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise self._unreachable(error) from error
        except BaseException:
            writer.close()
            raise
        return reader, writer

    # --- requests

    async def _prefix(self) -> str:
        return f"/v{parse.choose_version(API_VERSION, await self.version())}"

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        doing: str,
        query: Query = (),
        data: bytes | AsyncIterator[bytes] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        return await self._send(
            verb, await self._prefix() + path, doing=doing, query=query, data=data, timeout_s=timeout_s
        )

    async def _send(
        self,
        verb: str,
        path: str,
        *,
        doing: str,
        query: Query = (),
        data: bytes | AsyncIterator[bytes] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        try:
            async with self._request(verb, path, query=query, data=data, timeout_s=timeout_s) as response:
                body = await response.read()
        except TimeoutError:
            raise TimedOut(
                f"container engine: {doing}: no answer in {timeout_s:g} s", hint="see the engine's log"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise _refused(response.status, f"container engine: {doing}: {parse.said(body)}")
        return body

    def _request(
        self,
        verb: str,
        path: str,
        *,
        query: Query = (),
        data: bytes | AsyncIterator[bytes] | None = None,
        timeout_s: float,
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.UnixConnector(path=str(self.socket), limit=0)
            self._session = aiohttp.ClientSession(connector=connector)
        kind = "application/json" if isinstance(data, bytes) else "application/x-tar"
        return self._session.request(
            verb,
            f"http://engine{path}",
            params=query,
            data=data,
            headers={"Content-Type": kind} if data is not None else None,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"container engine at {self.socket}: {error}",
            hint="see whether the engine (Docker, or Podman) runs, and its log",
        )


def _refused(status: int, brief: str) -> Exception:
    match status:
        case 404:
            return NotFound(brief)
        case 409:
            return Conflict(brief)
        case _:
            return HostFailure(brief, hint="see the engine's log")


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise HostFailure(f"container engine: its answer is not understood: {error}") from error


async def chunks_of(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
