"""However a log is read, no byte that it still has is lost, and none is made up, also while its middle is dropped."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.agent import loglimit
from gangline.agent.loglimit import LogLimit
from gangline.rundir.dropped import read_dropped
from gangline.rundir.tail import find_tail, read_chunk, read_kept
from gangline.testing.link import pull_run

OUTPUT = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"x", b"word ", "ü€😀".encode()])
    | st.sampled_from([b"\x1b[31m", b"\x1b[2K", b"\x1b]0;t\x07", b"\x1b", b"["])
    | st.binary(max_size=4),
    max_size=40,
).map(b"".join)
LIMIT_BYTES = 4000
NOTE = re.compile("\n?… [^\n]* of output were dropped here [^\n]* …\n".encode())


@settings(max_examples=200, deadline=None)
@given(raw=OUTPUT, limit=st.integers(1, 20))
@example(raw=b"\xe0\x80", limit=1)
def test_pieces_hold_every_byte_once(raw: bytes, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(raw)
        seen = b""
        while piece := read_chunk(path, len(seen), limit_bytes=limit, final=True).data:
            seen += piece
        assert seen == raw


@settings(max_examples=200, deadline=None)
@given(raw=OUTPUT, count=st.integers(0, 10), limit=st.integers(1, 60))
def test_a_tail_is_the_end_of_the_log_and_has_the_lines_that_were_asked_for(raw: bytes, count: int, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(raw)
        lines = raw.split(b"\n")
        ended = raw.endswith(b"\n")
        pieces = [line + b"\n" for line in lines[:-1]] + ([] if ended else [lines[-1]])
        wanted = b"".join(pieces[-count:]) if count else b""
        tail = raw[find_tail(path, count, limit_bytes=limit) :]
        assert wanted.endswith(tail)
        assert len(tail) <= limit
        assert tail == wanted or len(tail) >= min(limit, len(wanted)) - 3


class DroppingLogs(RuleBasedStateMachine):
    """A rank writes, the agent drops, is killed between its note and the deed, a mirror pulls, somebody follows."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.source = Path(self.folder.name) / "runs/source"
        self.copy = Path(self.folder.name) / "copy"
        self.log = self.source / "attempts/0/rank-00000.log"
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        self.written = b""
        self.limit = LogLimit(self.log, LIMIT_BYTES)
        self.followed = 0
        """Offset that the follower has reached."""
        self.seen: list[tuple[int, bytes]] = []

    @rule(lines=st.integers(1, 60), width=st.integers(1, 120))
    def write_lines(self, lines: int, width: int) -> None:
        self.append(b"".join(b"%07d %s\n" % (len(self.written) + n, b"x" * width) for n in range(lines)))

    @rule(data=st.binary(min_size=1, max_size=50), times=st.integers(1, 400))
    def write_bytes(self, data: bytes, times: int) -> None:
        self.append(data.replace(b"\0", b"0") * times)

    def append(self, data: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(data)
        self.written += data

    @rule()
    def keep_limit(self) -> None:
        self.limit.apply(len(self.written))
        assert len(self.written) - read_dropped(self.log).num_bytes <= LIMIT_BYTES

    @rule()
    def die_between_note_and_deed(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loglimit, "punch", _die)
            try:
                self.limit.apply(len(self.written))
            except _Killed:
                self.limit = LogLimit(self.log, LIMIT_BYTES)
                self.limit.apply(len(self.written))

    @rule()
    def mirror(self) -> None:
        assert pull_run(self.source, self.copy, piece_bytes=512) == {}
        copy = self.copy / "attempts/0/rank-00000.log"
        assert read_dropped(copy) == read_dropped(self.log)
        assert b"".join(read_kept(copy)) == b"".join(read_kept(self.log))

    @rule(limit=st.integers(4, 3000))
    def follow(self, limit: int) -> None:
        chunk = read_chunk(self.log, self.followed, limit_bytes=limit)
        assert chunk.offset == self.followed
        if not chunk.dropped_bytes:
            self.seen.append((chunk.offset, chunk.data))
        else:
            assert NOTE.fullmatch(chunk.data)
            assert read_dropped(self.log).holds(chunk.offset)
        self.followed = chunk.next_offset

    @rule(count=st.integers(1, 50))
    def tail(self, count: int) -> None:
        offset = find_tail(self.log, count)
        gone = read_dropped(self.log)
        assert offset == gone.start or not gone.holds(offset)
        if not gone.num_bytes or offset >= gone.end:
            ended = self.written[offset:].rstrip(b"\n") if self.written.endswith(b"\n") else self.written[offset:]
            assert ended.count(b"\n") + 1 == count or offset == 0 or not self.written

    @invariant()
    def what_was_seen_was_written(self) -> None:
        for offset, data in self.seen:
            assert self.written[offset : offset + len(data)] == data
        self.seen.clear()

    @invariant()
    def what_is_kept_is_all_there(self) -> None:
        gone = read_dropped(self.log)
        head, tail = self.written[: gone.start], self.written[gone.end :]
        whole = b"".join(read_kept(self.log))
        assert whole.startswith(head)
        assert whole.endswith(tail)
        middle = whole[len(head) : len(whole) - len(tail)]
        assert NOTE.fullmatch(middle) if gone.num_bytes else not middle

    def teardown(self) -> None:
        self.folder.cleanup()


class _Killed(BaseException):
    """Stands for kill -9."""


def _die(_descriptor: int, _offset: int, num_bytes: int) -> None:
    if num_bytes > 1:  # one byte is the question whether it can be done
        raise _Killed


TestDroppingLogs = DroppingLogs.TestCase
TestDroppingLogs.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
