from __future__ import annotations

from atoll.system.loopback import shown, user_in

OURS, THEIRS = ("127.0.0.1", 5901), ("127.0.0.1", 40000)
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:170D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 61 1
   1: 0100007F:170D 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 62 1
   2: 0100007F:9C40 0100007F:170D 01 00000000:00000000 00:00000000 00000000  1001        0 63 1
   3: 0100007F:9C41 0100007F:170D 05 00000000:00000000 00:00000000 00000000     0        0 0 1
   4: 0100007F:9C42 0100007F:170D 01 00000000:00000000 00:00000000 00000000     0        0 0 1
   5: 0100007F:9C43 0100007F:170D 05 00000000:00000000 00:00000000 00000000  1002        0 64 1
"""


def test_the_user_is_that_of_the_other_end_not_of_ours():
    assert user_in(TABLE, ours=OURS, theirs=THEIRS) == 1001


def test_an_end_that_was_closed_is_nobodys():
    assert user_in(TABLE, ours=OURS, theirs=("127.0.0.1", 40001)) is None
    assert user_in(TABLE, ours=OURS, theirs=("127.0.0.1", 40002)) is None


def test_who_has_said_all_and_still_hears_is_there():
    assert user_in(TABLE, ours=OURS, theirs=("127.0.0.1", 40003)) == 1002


def test_a_connection_that_is_not_there_is_nobodys():
    assert user_in(TABLE, ours=OURS, theirs=("127.0.0.1", 1)) is None


def test_addresses_are_written_as_the_kernel_does():
    assert shown(("127.0.0.1", 5901)) == "0100007F:170D"
    assert shown(("::1", 80)) == "00000000000000000000000001000000:0050"
