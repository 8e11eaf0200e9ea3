"""Frames on a line: cut anywhere they are the same, and nothing that a peer sends makes a reader hold too much."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.engine.namespace.line_frames import (
    BadFrame,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    LineAddress,
    decode_address,
    decode_hello,
    decode_letter_frame,
    encode_address,
    encode_frame,
    encode_hello,
    encode_letter_frame,
)


def test_a_letter_as_bytes() -> None:
    assert encode_letter_frame(7, b"abc") == bytes.fromhex("0000000b 03 0000000000000007 616263")


def test_a_hello_comes_back_as_it_was() -> None:
    hello = Hello("ns", 3, "secret", "client")
    (frame,) = cut(encode_hello(hello))
    assert frame.kind == FrameKind.HELLO
    assert decode_hello(frame.content) == hello


def test_an_address_is_json_that_a_person_can_read() -> None:
    address = LineAddress("ns", 3, "secret", "line/3.sock")
    assert encode_address(address) == b'{"namespace_id":"ns","epoch":3,"token":"secret","socket":"line/3.sock"}'
    assert decode_address(encode_address(address)) == address


@pytest.mark.slow
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_that_arrive_in_pieces_are_the_same(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(FrameKind.LETTER, content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = FrameReader(40)
    frames = []
    for piece in pieces:
        reader.add(piece)
        frames += reader.frames()
    assert frames == [Frame(FrameKind.LETTER, content) for content in contents]
    assert reader.size_bytes == 0


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    reader = FrameReader(100)
    reader.add(struct.pack(">IB", 101, FrameKind.LETTER))
    with pytest.raises(BadFrame, match="101 bytes, expected at most 100"):
        list(reader.frames())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_hello_or_refused(content: bytes) -> None:
    with suppress(BadFrame):
        assert isinstance(decode_hello(content), Hello)


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_letter_without_a_whole_number_is_refused(content: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_letter_frame(content)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"namespace_id":1}', b"\xff" * 9, b'{"x":' + b"[" * 100_000])
def test_an_object_that_is_no_address_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an address"):
        decode_address(body)


@pytest.mark.parametrize("name", ["/run/other.sock", "line/../other.sock", "other.sock", "line/", "line"])
def test_an_address_leads_to_no_socket_of_another_program(name: str) -> None:
    body = encode_address(LineAddress("ns", 1, "token", name))
    with pytest.raises(ValueError, match="socket"):
        decode_address(body)


def cut(data: bytes) -> list[Frame]:
    reader = FrameReader(1000)
    reader.add(data)
    return list(reader.frames())
