"""A client that a public generator makes of openapi.json, with nothing of ours in it."""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.api import hypervisor as api

PACKAGE = "atoll_generated"


def generate(directory: Path, document: dict[str, Any]) -> None:
    """What the page for Python tells to type."""
    (directory / "openapi.json").write_text(json.dumps(document))
    (directory / "config.json").write_text('{"post_hooks": []}')
    command = [str(Path(sys.executable).with_name("openapi-python-client")), "generate"]
    options = [
        "--path",
        "openapi.json",
        "--config",
        "config.json",
        "--meta",
        "none",
        "--output-path",
        PACKAGE,
    ]
    made = subprocess.run([*command, *options], cwd=directory, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "Endpoint will not be generated" not in made.stdout + made.stderr


def live(port: int, tls: ssl.SSLContext) -> list[Any]:
    """A VM's life by the generated client: what each call gave."""

    def call(name: str) -> Any:
        return importlib.import_module(f"{PACKAGE}.api.default.{name}")

    models = importlib.import_module(f"{PACKAGE}.models")
    client = importlib.import_module(PACKAGE).Client(
        base_url=f"https://127.0.0.1:{port}",
        verify_ssl=tls,
        headers={"Accept": "application/json"},
        raise_on_unexpected_status=True,
    )
    spec = models.VmSpec(name="web", image="tiny", driver="sim", memory_mib=64)
    with client:
        return [
            call("vm_create").sync(client=client, body=models.CreateVm(spec=spec)),
            call("vm_list").sync(client=client),
            call("vm_create").sync(client=client, body=models.CreateVm(spec=spec)),
            call("vm_destroy").sync_detailed(vm="web", client=client),
            call("vm_list").sync(client=client),
        ]


async def test_it_creates_lists_and_destroys_a_vm(node, pki, ann, tmp_path, monkeypatch: pytest.MonkeyPatch):
    document = await ann.call(api.OPENAPI)
    await asyncio.to_thread(generate, tmp_path, document)
    monkeypatch.syspath_prepend(str(tmp_path))
    made, listed, again, gone, after = await asyncio.to_thread(live, node.port, pki.user("ann"))
    assert (made.ip, made.name, made.owner_users) == ("10.9.0.5", "web", ["ann"])
    assert [vm.ip for vm in listed] == [made.ip]
    assert (again.code, bool(again.hint)) == ("conflict", True)
    assert (int(gone.status_code), gone.parsed) == (204, None)
    assert after == []
