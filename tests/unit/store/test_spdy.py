import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.store.kubernetes import spdy

RESET = bytes.fromhex("80030003000000080000000100000005")
"""RST_STREAM of stream 1, as a client that gives up sends it."""


def test_the_dictionary_is_the_standards():
    assert len(spdy.DICTIONARY) == 1423
    assert spdy.DICTIONARY.endswith(b",enq=0.")


def test_a_stream_from_opening_to_end():
    client, server = spdy.SpdyConnection(), spdy.SpdyConnection()
    headers = {"streamtype": "data", "port": "80", "requestid": "1"}
    sent = client.open(1, headers) + client.data(1, b"hello") + client.data(1, b"", end=True)
    assert list(server.receive(sent)) == [
        spdy.Opened(1, headers, False), spdy.Data(1, b"hello", False), spdy.Data(1, b"", True),
    ]  # fmt: skip
    back = server.reply(1) + server.data(1, b"there") + server.pong(7) + RESET
    assert list(client.receive(back)) == [
        spdy.Data(1, b"there", False), spdy.Ping(7), spdy.Reset(1),
    ]  # fmt: skip


@given(cuts=st.lists(st.integers(1, 60), max_size=40))
def test_frames_may_come_in_any_pieces(cuts):
    client, server = spdy.SpdyConnection(), spdy.SpdyConnection()
    sent = b"".join(
        client.open(number, {"port": str(number)}) + client.data(number, b"x" * number)
        for number in range(1, 20, 2)
    )
    events = []
    for size in [*cuts, len(sent)]:
        piece, sent = sent[:size], sent[size:]
        events += server.receive(piece)
    assert [event.stream for event in events] == [n for n in range(1, 20, 2) for _ in "ab"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x00\x01\x00\x00\x00\x0a" + b"\0" * 10,
        b"\x80\x03\x00\x01\x00\x00\x00\x0e" + b"\0" * 10 + b"junk",
    ],
    ids=["another version", "headers that are none"],
)
def test_what_is_not_spdy_is_refused(data):
    with pytest.raises(spdy.ProtocolError):
        list(spdy.SpdyConnection().receive(data))
