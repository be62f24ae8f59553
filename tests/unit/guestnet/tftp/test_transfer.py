"""The state machine of a transfer, also over a wire that loses, doubles and reorders packets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.guestnet.tftp import transfer
from atoll.guestnet.tftp.codec import Ack, Data, Error, Packet
from atoll.guestnet.tftp.transfer import (
    LARGEST_WINDOW,
    TRIES,
    Outcome,
    State,
    Step,
    Terms,
    begin,
    heard,
    negotiate,
    woke,
)


class Client:
    """Receives a file as RFC 1350 and 7440 say: an ACK after each window, and at once after a gap."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.received = b""
        self.next = 1
        self.unacked = 0
        self.finished = False

    def hear(self, packet: Packet) -> list[Packet]:
        if not isinstance(packet, Data):  # the options
            return [Ack(0)] if self.next == 1 else []
        if packet.block != self.next % 65536:
            self.unacked = 0
            return [Ack((self.next - 1) % 65536)]
        if not self.finished:
            self.received += packet.payload
            self.next += 1
            self.unacked += 1
            self.finished = len(packet.payload) < self.terms.block_bytes
        if self.finished or self.unacked == self.terms.window:
            self.unacked = 0
            return [Ack((self.next - 1) % 65536)]
        return []


def packets_of(content: bytes, state: State, step: Step) -> list[Packet]:
    packets: list[Packet] = [Ack(0)] if step.options else []  # any packet that is not data
    for block in step.blocks:
        start, size = state.extent(block)
        packets.append(Data(block % 65536, content[start : start + size]))
    return packets


class Wire:
    """Delivers packets late, twice or not at all."""

    def __init__(self, seed: int, loss: float) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.flying: list[tuple[float, int, str, Packet]] = []
        self.count = 0

    def send(self, to: str, packets: list[Packet], now: float) -> None:
        for packet in packets:
            copies = 0 if self.random.random() < self.loss else 2 if self.random.random() < self.loss else 1
            for _ in range(copies):
                self.count += 1
                self.flying.append((now + self.random.random() * 0.4, self.count, to, packet))

    def next(self) -> tuple[float, int, str, Packet] | None:
        return min(self.flying, default=None)


def run(content: bytes, terms: Terms, seed: int, loss: float) -> tuple[State, Client, int]:
    """A whole transfer, in no time."""
    client, wire, now, sent = Client(terms), Wire(seed, loss), 0.0, 0
    state, step = begin(len(content), terms, now)
    for _ in range(100_000):
        assert len(step.blocks) <= terms.window
        sent += len(step.blocks)
        wire.send("client", packets_of(content, state, step), now)
        if state.outcome is not None:
            return state, client, sent
        arrival = wire.next()
        if arrival is None or arrival[0] > state.wake_at:
            now = state.wake_at
            state, step = woke(state, now)
            continue
        wire.flying.remove(arrival)
        now, _, to, packet = arrival
        step = Step()
        if to == "client":
            wire.send("server", client.hear(packet), now)
        else:
            state, step = heard(state, packet, now)
    raise AssertionError("the transfer does not end")


terms = st.builds(
    Terms,
    block_bytes=st.integers(8, 64),
    window=st.integers(1, LARGEST_WINDOW),
    agreed=st.sampled_from([{}, {"blksize": "8"}]),
)


@given(st.binary(max_size=2000), terms)
def test_a_file_arrives_whole_and_no_block_is_sent_twice_without_need(content: bytes, terms: Terms) -> None:
    state, client, sent = run(content, terms, seed=0, loss=0)
    assert state.outcome is Outcome.DONE
    assert client.received == content
    # Packets overtake each other, also where none is lost: with a window that looks like a loss.
    assert sent == state.last or terms.window > 1


@settings(max_examples=150)
@given(st.binary(max_size=2000), terms, st.integers(0, 2**32), st.floats(0.01, 0.25))
def test_a_file_arrives_whole_over_a_bad_wire_or_the_transfer_says_that_it_did_not(
    content: bytes, terms: Terms, seed: int, loss: float
) -> None:
    state, client, _ = run(content, terms, seed, loss)
    if state.outcome is Outcome.DONE:
        assert client.received == content
    else:
        # Given up for want of ACKs; what came is the beginning, and never anything else.
        assert state.outcome is Outcome.ABANDONED
        assert content.startswith(client.received)


def test_a_bad_wire_is_no_reason_to_give_up() -> None:
    done = [run(b"x" * 3000, Terms(64, 4), seed, loss=0.1)[0].outcome is Outcome.DONE for seed in range(50)]
    assert all(done)


@given(
    st.lists(st.tuples(st.sampled_from(["ack", "error", "data", "time"]), st.integers(0, 65535)), max_size=60)
)
def test_nothing_that_a_client_sends_makes_the_server_send_more_than_a_window(
    events: list[tuple[str, int]],
) -> None:
    terms, now = Terms(8, 4), 0.0
    state, step = begin(1000, terms, now)
    for kind, number in events:
        now += 0.7
        before = state
        match kind:
            case "time":
                state, step = woke(state, now)
            case "error":
                state, step = heard(state, Error(number, ""), now)
            case "data":
                state, step = heard(state, Data(number, b""), now)
            case _:
                state, step = heard(state, Ack(number), now)
        assert len(step.blocks) <= 4
        assert state.acked >= before.acked
        assert state.acked <= state.sent <= state.last


def test_an_ack_that_comes_again_sends_nothing_again() -> None:
    state, _ = begin(2000, Terms(), 0)
    state, step = heard(state, Ack(1), 0.1)
    assert list(step.blocks) == [2]
    state, step = heard(state, Ack(1), 0.2)
    assert list(step.blocks) == []


def test_with_windows_a_lost_first_block_is_sent_again_at_once_and_only_once() -> None:
    state, step = begin(512 * 8, Terms(window=4), 0)
    assert list(step.blocks) == [1, 2, 3, 4]
    state, step = heard(state, Ack(0), 0.1)
    assert list(step.blocks) == [1, 2, 3, 4]
    state, step = heard(state, Ack(0), 0.2)
    assert list(step.blocks) == []


def test_after_a_gap_the_window_begins_behind_what_arrived() -> None:
    state, _ = begin(512 * 8, Terms(window=4), 0)
    state, step = heard(state, Ack(2), 0.1)
    assert list(step.blocks) == [3, 4, 5, 6]


def test_a_multiple_of_the_block_ends_with_an_empty_block() -> None:
    state, _ = begin(1024, Terms(), 0)
    assert state.last == 3
    assert state.extent(3) == (1024, 0)


def test_an_empty_file_is_one_empty_block() -> None:
    state, step = begin(0, Terms(), 0)
    assert list(step.blocks) == [1]
    assert heard(state, Ack(1), 0.1)[0].outcome is Outcome.DONE


def test_numbers_go_on_from_zero_after_65535() -> None:
    state, _ = begin(70000 * 8, Terms(8), 0)
    for block in range(1, 66000):
        state, step = heard(state, Ack(block % 65536), 0)
    assert list(step.blocks) == [66000]


def test_options_wait_for_their_ack_and_are_sent_again_without_it() -> None:
    state, step = begin(10, Terms(agreed={"tsize": "10"}), 0)
    assert (step.options, list(step.blocks)) == (True, [])
    state, step = heard(state, Ack(7), 0.1)
    assert step == Step()
    state, step = woke(state, 1.0)
    assert step.options
    state, step = heard(state, Ack(0), 1.1)
    assert list(step.blocks) == [1]


def test_a_silent_client_is_given_up() -> None:
    state, _ = begin(10, Terms(), 0)
    sent = 1
    while state.outcome is None:
        state, step = woke(state, state.wake_at)
        sent += len(step.blocks)
    assert state.outcome is Outcome.ABANDONED
    assert sent == TRIES


def test_a_client_that_refuses_is_left_alone() -> None:
    state, _ = begin(10, Terms(agreed={"tsize": "10"}), 0)
    state, step = heard(state, Error(8, "no options, please"), 0.1)
    assert (state.outcome, step) == (Outcome.REFUSED, Step())
    assert heard(state, Ack(0), 0.2) == (state, Step())


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ({}, {}),
        ({"blksize": "1432", "tsize": "0"}, {"blksize": "1432", "tsize": "4096"}),
        ({"blksize": "65464"}, {"blksize": "1468"}),
        ({"windowsize": "65535", "timeout": "3"}, {"windowsize": str(LARGEST_WINDOW), "timeout": "3"}),
        ({"blksize": "7", "windowsize": "0", "timeout": "6", "tsize": "-1"}, {}),
        ({"blksize": "٣٠٠", "multicast": "", "tsize": "1e3"}, {}),
    ],
)
def test_what_is_asked_for_is_granted_within_limits_and_the_rest_passed_over(
    asked: dict[str, str], agreed: dict[str, str]
) -> None:
    assert negotiate(asked, 4096, 1468).agreed == agreed


def test_a_size_that_is_not_known_is_not_told() -> None:
    assert negotiate({"tsize": "0"}, None, 1468) == Terms(agreed={})
    assert transfer.negotiate({"timeout": "5"}, None, 1468).timeout_s == 5
