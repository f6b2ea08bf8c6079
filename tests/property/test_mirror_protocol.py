"""No byte of a log is lost or doubled, whatever happens to the copy and on the way."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.rundir import mirror
from gangline.rundir.mirror import Gap, Piece, apply, apply_whole
from gangline.testing.link import pull_run

LOGS = ["attempts/0/rank-00000.log", "attempts/0/node-000/events.jsonl", "metrics/rank-00001.jsonl"]
WHOLES = ["attempts/0/gang.json", "attempts/0/result.json"]


class Killed(BaseException):
    """Stands for kill -9 at one moment."""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=200), events=st.data())
def test_pieces_in_any_order_and_number_give_the_source(data: bytes, events: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "x.log"
        for _ in range(events.draw(st.integers(0, 20))):
            start = events.draw(st.integers(0, len(data)))
            end = events.draw(st.integers(start, len(data)))
            try:
                apply(folder, "x.log", start, data[start:end])
            except Gap as gap:
                assert start > gap.size  # noqa: PT017 - whether there is a gap depends on the draw
            assert data.startswith(copy.read_bytes())
        size = copy.stat().st_size if copy.exists() else 0
        apply(folder, "x.log", size, data[size:])
        assert copy.read_bytes() == data


@settings(max_examples=100, deadline=None)
@given(order=st.permutations(range(6)), repeats=st.lists(st.integers(0, 5), max_size=6))
def test_the_newest_version_of_a_whole_file_wins_in_any_order(order: list[int], repeats: list[int]) -> None:
    versions = [b"version %d" % number for number in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        for number in [*order, *repeats]:
            data = versions[number]
            apply_whole(folder, Piece("a.json", 0, data, 1000 + number, hashlib.sha256(data).hexdigest()))
        assert (Path(folder) / "a.json").read_bytes() == versions[5]


class Mirroring(RuleBasedStateMachine):
    """A run directory that grows, and a mirror that is killed and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.source = Path(self.folder.name) / "runs/source"
        self.copy = Path(self.folder.name) / "copy"

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(path=st.sampled_from(LOGS), data=st.binary(min_size=1, max_size=100))
    def grow(self, path: str, data: bytes) -> None:
        (self.source / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.source / path).open("ab") as file:
            file.write(data)

    @rule(path=st.sampled_from(WHOLES), data=st.binary(max_size=100))
    def replace(self, path: str, data: bytes) -> None:
        (self.source / path).parent.mkdir(parents=True, exist_ok=True)
        temporary = self.source / (path + ".new")
        temporary.write_bytes(data)
        temporary.replace(self.source / path)

    @rule(piece_bytes=st.integers(1, 50))
    def mirror(self, piece_bytes: int) -> None:
        assert pull_run(self.source, self.copy, piece_bytes=piece_bytes) == {}

    @rule(calls=st.integers(0, 40), name=st.sampled_from(["pwrite", "write", "rename", "open", "mkdir"]))
    def mirror_and_be_killed(self, calls: int, name: str) -> None:
        left = [calls]
        real = getattr(mirror.os, name)

        def dying(*args: object, **keys: object) -> object:
            if left[0] <= 0:
                raise Killed
            left[0] -= 1
            if name in {"pwrite", "write"}:  # and each write takes a part only
                args = (args[0], bytes(args[1])[: max(1, len(args[1]) // 2)], *args[2:])  # type: ignore[arg-type, call-overload]
            return real(*args, **keys)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirror.os, name, dying)
            with contextlib.suppress(Killed):
                pull_run(self.source, self.copy, piece_bytes=10)

    @invariant()
    def the_copy_of_a_log_is_a_beginning_of_it(self) -> None:
        for path in LOGS:
            if (self.copy / path).exists():
                assert (self.source / path).read_bytes().startswith((self.copy / path).read_bytes())

    @invariant()
    def nothing_is_ever_lost(self) -> None:
        if not self.source.exists():
            return
        check = Path(self.folder.name) / "check"
        for path in [*LOGS, *WHOLES]:  # a mirror that goes on from here, without touching this one
            if (self.copy / path).exists():
                (check / path).parent.mkdir(parents=True, exist_ok=True)
                (check / path).write_bytes((self.copy / path).read_bytes())
                status = (self.copy / path).stat()
                mirror.os.utime(check / path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert pull_run(self.source, check) == {}
        for path in [*LOGS, *WHOLES]:
            if (self.source / path).exists():
                assert (check / path).read_bytes() == (self.source / path).read_bytes()


TestMirroring = Mirroring.TestCase
TestMirroring.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
