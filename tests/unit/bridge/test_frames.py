from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.bridge.frames import BrokenFrame, FrameReader, FrameWriter, render_frame

FRAMES = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=300)), max_size=5)


def reading(data: bytes, *, at_once: int = 1 << 16, tolerant: bool = False) -> FrameReader:
    stream = io.BytesIO(data)
    return FrameReader(lambda num_bytes: stream.read(min(num_bytes, at_once)), tolerant=tolerant)


@given(frames=FRAMES, at_once=st.integers(1, 50))
def test_frames_come_out_as_they_went_in(frames: list[tuple[int, bytes]], at_once: int) -> None:
    written = bytearray()

    def take_some(data: memoryview) -> int:
        written.extend(data[:at_once])
        return min(at_once, len(data))

    writer = FrameWriter(take_some)
    for number, payload in frames:
        writer.send({"id": number, "do": "x"}, payload)
    reader = reading(bytes(written), at_once=at_once)
    found = []
    while (frame := reader.next()) is not None:
        found.append((frame.id, frame.payload))
    assert found == frames


JUNK = [
    b"Welcome to the cluster\n",
    b"Submitted batch job 519605\n",
    b"\xff\xfe {}\n",
    b'{"motd": 1}\n',
    b"{[\n",
    b"\n",
    b"hi ",
]


@given(frames=FRAMES, junk=st.lists(st.sampled_from(JUNK), max_size=6))
def test_what_a_login_shell_leaves_behind_is_passed_over(frames: list[tuple[int, bytes]], junk: list[bytes]) -> None:
    data = b"".join(junk)
    for number, payload in frames:
        data += render_frame({"id": number}, payload) + payload + b"".join(junk)
    reader = reading(data, tolerant=True)
    assert [(frame.id, frame.payload) for frame in iter(reader.next, None)] == frames


def test_junk_within_a_payload_is_noticed() -> None:
    payload = b"x" * 100
    data = render_frame({"id": 1}, payload) + payload[:50] + b"connection will be closed\n" + payload[50:]
    with pytest.raises(BrokenFrame, match="something else"):
        reading(data, tolerant=True).next()


def test_a_stream_that_is_no_frames_is_refused_where_nothing_may_be_passed_over() -> None:
    for data in (b"hello\n", b'{"id": "x", "bytes": 0}\n', b'{"id": 1, "bytes": -1}\n', b'{"id": 1}\n', b"[1]\n"):
        with pytest.raises(BrokenFrame):
            reading(data).next()
    with pytest.raises(BrokenFrame):
        reading(render_frame({"id": 1}, b"abc") + b"ab").next()
    assert reading(b'{"id": 1, "by').next() is None


def test_names_that_are_not_utf8_survive() -> None:
    name = os.fsdecode(b"caf\xe9.log")
    frame = reading(render_frame({"id": 1, "path": name})).next()
    assert frame is not None
    assert os.fsencode(frame.header["path"]) == b"caf\xe9.log"
