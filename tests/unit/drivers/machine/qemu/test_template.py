from __future__ import annotations

import pytest

from atoll.drivers.machine.qemu.template import blames_template, cpu_model

CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu sse2

processor\t: 1
model name\t: AMD EPYC
flags\t\t: fpu sse2
"""


def test_the_cpu_is_its_name_and_what_it_can_do() -> None:
    name, flags = cpu_model(CPUINFO).rsplit(" ", 1)

    assert name == "AMD EPYC"
    assert cpu_model(CPUINFO.replace("fpu sse2", "fpu sse2 avx2")) != f"{name} {flags}"
    assert cpu_model(CPUINFO.replace("processor\t: 1", "processor\t: 7")) == f"{name} {flags}"


def test_a_cpu_that_says_nothing_is_unknown() -> None:
    assert cpu_model("").startswith("unknown ")


@pytest.mark.parametrize(
    ("said", "blamed"),
    [
        ("qemu-system-x86_64: load of migration failed: Input/output error\n", True),
        ("qemu-system-x86_64: load of migration failed: Cannot allocate memory\n", False),
        ("qemu-system-x86_64: cannot set up guest memory 'ram': Cannot allocate memory\n", False),
        ("", False),
    ],
)
def test_a_template_is_blamed_for_a_state_that_cannot_be_read_and_for_nothing_else(
    said: str, blamed: bool
) -> None:
    assert blames_template(said) is blamed
