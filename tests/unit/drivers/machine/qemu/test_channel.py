from __future__ import annotations

from atoll.drivers.machine.qemu.channel import order


def test_an_order_is_one_line_with_all_that_makes_somebody() -> None:
    seed = bytes(range(32))

    assert order("identity", "02:00:0a:01:00:05", "web", seed, 1_700_000_000_123_456_789) == (
        b"identity 02:00:0a:01:00:05 web "
        b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f 1700000000123456789\n"
    )


def test_the_longest_order_fits_into_what_a_guest_reads() -> None:
    # CHANNEL_MAX_LINE of the guest's channel_message.h.
    assert len(order("rehearse", "02:00:0a:01:00:05", "x" * 63, bytes(32), 2**63)) <= 256
