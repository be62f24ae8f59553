from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Invalid
from atoll.model.vm import (
    MAX_USER_DATA,
    VmSpec,
    check_user_data,
    check_wait_for,
    vcpus_for,
)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "x\n"}, "name"),
        ({"image": "a/../b"}, "image"),
        ({"driver": "QEMU"}, "driver"),
        ({"memory_mib": 15}, "memory_mib"),
        ({"memory_mib": 1 << 40}, "memory_mib"),
        ({"milli_cpus": 0}, "milli_cpus"),
        ({"milli_cpus": 1_024_001}, "milli_cpus"),
        ({"subnet": ".."}, "subnet"),
        ({"tags": {"a b": "c"}}, "tag key"),
        ({"owner_users": ("a b",)}, "owner"),
        ({"owner_groups": ("ops",) * 65}, "owner"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_field(changes: dict[str, object], field: str):
    with pytest.raises(Invalid) as refusal:
        VmSpec(**{"name": "web", "image": "appliance", **changes})
    assert refusal.value.details["field"] == field


def test_a_spec_refuses_fields_that_it_does_not_know():
    with pytest.raises(msgspec.ValidationError, match="unknown field `memory`"):
        msgspec.json.decode(b'{"name":"a","image":"b","memory":1}', type=VmSpec)


@given(st.integers(0, 70_000))
def test_a_port_can_be_waited_for_just_when_it_is_one(port: int):
    if 1 <= port <= 65535:
        assert check_wait_for("wait_for", f"port:{port}")
    else:
        with pytest.raises(Invalid):
            check_wait_for("wait_for", f"port:{port}")


@pytest.mark.parametrize("stage", ["", "port:", "port:080", "dhcp\n", "address", "ready", "PORT:80"])
def test_only_stages_of_a_guest_can_be_waited_for(stage: str):
    with pytest.raises(Invalid, match="wait_for"):
        check_wait_for("wait_for", stage)


@given(st.integers(1, 1_024_000), st.integers(0, 512))
def test_a_vm_has_as_many_vcpus_as_its_share_needs_and_the_host_has(milli: int, cores: int):
    vcpus = vcpus_for(milli, cores)
    assert 1 <= vcpus <= max(1, cores)
    assert vcpus * 1000 >= milli or vcpus == max(1, cores)


def test_user_data_has_a_limit_and_is_not_shown():
    assert check_user_data(MAX_USER_DATA) == MAX_USER_DATA
    with pytest.raises(Invalid, match=f"user_data '{MAX_USER_DATA + 1} bytes'"):
        check_user_data(MAX_USER_DATA + 1)
