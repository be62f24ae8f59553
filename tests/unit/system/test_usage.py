from __future__ import annotations

from atoll.system.usage import Transfer, busy_s, io_of

STAT = "cpu  100 10 50 9000 500 5 15 20 0 0\ncpu0 50 5 25 4500 250 2 8 10 0 0\n"
IO = "rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nread_bytes: 4096\nwrite_bytes: 8192\n"


def test_a_cpu_is_busy_when_it_is_neither_idle_nor_waiting():
    assert busy_s(STAT, 100) == 2.0


def test_what_a_process_moved_is_what_reached_the_disks():
    assert io_of(IO) == Transfer(4096, 8192)
    assert io_of("") == Transfer()
