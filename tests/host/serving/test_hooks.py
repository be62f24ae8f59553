"""Hooks with a real command and a real server, in a namespace that the node is not in."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from atoll.errors import AtollError, HostFailure, Invalid, TimedOut, Unreachable
from atoll.serving.hooks.backlog import Notice, NoticeKind, view_of
from atoll.serving.hooks.config import HookConfig
from atoll.serving.hooks.targets import OUTPUT_BYTES, Command, Webhook
from atoll.system import namespaces
from samples import a_vm

NOTICE = Notice(
    NoticeKind.CREATED, "n1", "epoch", 7, datetime(2024, 1, 1, tzinfo=UTC), view_of(a_vm(tags={"a": "b"}))
)
TOLD = {
    "event": "created",
    "node": "n1",
    "epoch": "epoch",
    "sequence": 7,
    "at": "2024-01-01T00:00:00Z",
    "vm": {
        "instance_id": "i",
        "name": "web",
        "ip": "10.1.0.5",
        "mac": "52:54:0a:01:00:05",
        "subnet": "lan",
        "tags": {"a": "b"},
        "owner_users": ["ann"],
    },
}

NOTES = """#!{python}
import json, os, sys
seen = {{
    "notice": json.load(sys.stdin),
    "ids": [os.getuid(), os.getgid(), *os.getgroups()],
    "environment": sorted(os.environ),
    "directory": os.getcwd(),
    "network": os.readlink("/proc/self/ns/net"),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")],
    "privileges": [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")],
}}
json.dump(seen, open({path!r}, "w"))
"""


@pytest.fixture
def outside() -> Iterator[str]:
    """The namespace around that of a node."""
    name = f"xhook{os.getpid()}{secrets.token_hex(2)}"
    namespaces.ensure(name)
    yield name
    namespaces.delete(name)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where anybody may write."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    return open_to_all


def script(place: Path, text: str) -> str:
    path = place / "script"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


async def test_a_command_reads_the_notice_and_is_nobody(place: Path, outside: str) -> None:
    notes = place / "notes"
    path = script(place, NOTES.format(python="/usr/bin/python3", path=str(notes)))
    await Command(HookConfig((path,)), outside).tell(NOTICE)
    seen = json.loads(notes.read_text())
    assert seen["notice"] == TOLD
    assert set(seen["ids"]) == {65534}
    assert set(seen["capabilities"]) == {"0000000000000000"}
    assert seen["privileges"] == ["1"]
    assert set(seen["environment"]) <= {"LC_ALL", "PATH", "LC_CTYPE"}
    assert seen["directory"] == "/"
    assert seen["network"] == namespaces.inside(outside, lambda: os.readlink("/proc/thread-self/ns/net"))


async def test_a_command_that_fails_or_hangs_has_not_taken_the_notice(place: Path) -> None:
    failing = Command(HookConfig((script(place, "#!/bin/sh\necho no such zone >&2\nexit 3\n"),)), None)
    with pytest.raises(HostFailure, match=r"exit status 3: 'no such zone'"):
        await failing.tell(NOTICE)
    hanging = Command(HookConfig((script(place, "#!/bin/sh\nsleep 60\n"),), timeout_s=1), None)
    with pytest.raises(TimedOut):
        await hanging.tell(NOTICE)
    with pytest.raises(AtollError):
        await Command(HookConfig((str(place / "none"),)), None).tell(NOTICE)
    with pytest.raises(Invalid, match="not on this host"):
        Command(HookConfig(("/bin/true",), user="xnobodyhere"), None)


async def test_a_command_that_talks_without_end_costs_no_memory_and_its_words_no_lines(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # 200 MB, which the agent must not keep; and what would look like another line of the log.
    loud = script(place, "#!/bin/sh\nprintf 'one\\ntwo\\n'\nhead -c 200000000 /dev/zero | tr '\\0' x\n")
    await Command(HookConfig((loud,), timeout_s=60), None).tell(NOTICE)
    (record,) = caplog.records
    assert "one\\ntwo\\nxxx" in record.getMessage()
    assert len(record.getMessage()) < OUTPUT_BYTES + 200


class Receiver:
    """A web service with a certificate of its own CA, which wants one of its clients too."""

    def __init__(self, place: Path) -> None:
        self.notices: list[Any] = []
        self.status = 204
        self.delay_s = 0.0
        self.url = ""
        authority = trustme.CA()
        server, client = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("node.test")
        self.ca, self.certificate, self.key = (place / name for name in ("ca", "certificate", "key"))
        authority.cert_pem.write_to_path(self.ca)
        client.private_key_pem.write_to_path(self.key)
        for blob in client.cert_chain_pems:
            blob.write_to_path(self.certificate, append=True)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.configure_cert(self.context)
        authority.configure_trust(self.context)
        self.context.verify_mode = ssl.CERT_REQUIRED

    async def take(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.delay_s)
        self.notices.append(await request.json())
        return web.Response(status=self.status, headers={"Location": "https://127.0.0.1/"})

    def hook(self, **changes: Any) -> HookConfig:
        settings = {"ca": self.ca, "certificate": self.certificate, "key": self.key, "timeout_s": 2}
        return HookConfig(url=self.url, **{**settings, **changes})


@pytest.fixture
async def receiver(outside: str, tmp_path: Path) -> AsyncIterator[Receiver]:
    receiver = Receiver(tmp_path)
    app = web.Application()
    app.router.add_post("/vms", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    listening = namespaces.socket_in(outside, socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    await web.SockSite(runner, listening, ssl_context=receiver.context).start()
    receiver.url = f"https://localhost:{listening.getsockname()[1]}/vms?token=secret"
    yield receiver
    await runner.cleanup()


async def test_a_web_service_is_sent_the_notice_where_the_host_reaches_it(
    receiver: Receiver, outside: str
) -> None:
    await Webhook(receiver.hook(), outside).tell(NOTICE)
    assert receiver.notices == [TOLD]
    with pytest.raises(Unreachable):
        await Webhook(receiver.hook(), None).tell(NOTICE)  # from here nobody is there


@pytest.mark.parametrize("status", [302, 400, 500])
async def test_a_web_service_that_answers_otherwise_has_not_taken_it(
    receiver: Receiver, outside: str, status: int
) -> None:
    receiver.status = status
    with pytest.raises(Unreachable, match=f"answered {status}"):
        await Webhook(receiver.hook(), outside).tell(NOTICE)
    assert len(receiver.notices) == 1  # and nobody was sent elsewhere


async def test_a_web_service_is_believed_only_with_a_certificate_of_its_ca_and_in_time(
    receiver: Receiver, outside: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    trustme.CA().cert_pem.write_to_path(other)
    for wrong in ({"ca": other}, {"ca": None}, {"certificate": None, "key": None}):
        with pytest.raises(Unreachable) as caught:
            await Webhook(receiver.hook(**wrong), outside).tell(NOTICE)
        assert "secret" not in str(caught.value)
    receiver.delay_s = 10
    with pytest.raises(TimedOut):
        await Webhook(receiver.hook(timeout_s=1), outside).tell(NOTICE)
    assert receiver.notices == []


async def test_a_name_that_cannot_be_found_is_told_as_such(outside: str) -> None:
    hook = HookConfig(url="https://nobody.invalid/vms?token=secret", timeout_s=8)
    with pytest.raises((Unreachable, TimedOut)) as caught:
        await Webhook(hook, outside).tell(NOTICE)
    assert "secret" not in str(caught.value)
