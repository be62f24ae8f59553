"""The credentials of VMs on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atoll.errors import HostFailure
from atoll.hypervisor.vms.credential_store import NAME
from atoll.hypervisor.vms.records import Records
from atoll.model.long_lived import LongLivedCredential
from atoll.system.writer import Writer
from samples import a_vm

CREDENTIAL = LongLivedCredential(
    "-----BEGIN CERTIFICATE-----\nUFVCTElD\n-----END CERTIFICATE-----\n",
    "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n",
)
VM = a_vm("10.1.0.5", role="web", instance_id="i-1")
OTHER = a_vm("10.1.0.6", role="web", instance_id="i-2")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    records = Records(tmp_path, Writer())
    records.prepare()
    for vm in (VM, OTHER):
        records.directory(vm.ip).mkdir()
    return records


async def test_a_credential_is_read_back_and_nothing_of_it_is_in_any_file(
    records: Records, tmp_path: Path
) -> None:
    await records.credentials.write(VM, CREDENTIAL)
    assert await Records(tmp_path, Writer()).credentials.read(VM) == CREDENTIAL
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path).as_posix() for path in kept} == {f"vms/{VM.ip}/{NAME}", "secrets.key"}
    for path in kept:
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"U0VDUkVU" not in path.read_bytes()
        assert b"UFVCTElD" not in path.read_bytes()


async def test_it_moves_with_the_directory_and_is_of_no_use_to_another_vm(records: Records) -> None:
    await records.credentials.write(VM, CREDENTIAL)
    shutil.copy(records.directory(VM.ip) / NAME, records.directory(OTHER.ip) / NAME)
    with pytest.raises(HostFailure, match=rf"opening .*{OTHER.ip}/{NAME}: it was changed, or sealed for"):
        await records.credentials.read(OTHER)
    moved = a_vm("10.1.0.7", role="web", instance_id="i-1")
    records.directory(VM.ip).rename(records.directory(moved.ip))
    assert await records.credentials.read(moved) == CREDENTIAL


async def test_one_that_is_gone_or_cut_short_is_told_by_its_path(records: Records) -> None:
    with pytest.raises(HostFailure, match=f"opening .*{NAME}: no such file or directory"):
        await records.credentials.read(VM)
    await records.credentials.write(VM, CREDENTIAL)
    path = records.directory(VM.ip) / NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HostFailure, match=f"opening .*{NAME}: it was changed"):
        await records.credentials.read(VM)


async def test_it_goes_with_its_vm(records: Records, tmp_path: Path) -> None:
    await records.credentials.write(VM, CREDENTIAL)
    await records.discard(VM.ip)
    assert not list(tmp_path.rglob(NAME))
