"""Whatever happens to the connection, the bridge and the server: at the end the mirror holds what lies there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.backends.slurm.ferry import Ferry
from gangline.backends.slurm.link import Changes
from gangline.domain.errors import Transient
from gangline.rundir.home import Home
from gangline.testing.link import LocalLink

RUNS = ["a", "b"]
LOGS = ["attempts/0/rank-00000.log", "attempts/0/node-000/events.jsonl", "attempts/1/rank-00000.log"]
WHOLES = ["attempts/0/gang.json", "attempts/1/result.json"]


class BreakingLink(LocalLink):
    """Loses its connection after so many calls, before or after the far side has acted."""

    calls_left = 1 << 30
    acts = False

    def _break(self) -> bool:
        self.calls_left -= 1
        return self.calls_left < 0

    def changes(self, runs: Sequence[str], since: object) -> Changes:
        is_broken = self._break()
        found = super().changes(runs, since) if self.acts or not is_broken else None
        if is_broken or found is None:
            raise Transient("lost")
        return found

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        if self._break():
            raise Transient("lost")
        return super().read(reads)

    def append(self, path: str, offset: int, data: bytes) -> int:
        is_broken = self._break()
        size = super().append(path, offset, data) if self.acts or not is_broken else 0
        if is_broken:
            raise Transient("lost")
        return size


class Ferrying(RuleBasedStateMachine):
    """Two runs that grow, a link that breaks, bridges and servers that are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.link = BreakingLink(Path(self.folder.name) / "work")
        self.home = Home(Path(self.folder.name) / "home")
        self.start_again()

    def teardown(self) -> None:
        self.folder.cleanup()

    def far(self, run: str) -> Path:
        return self.link.work / "runs" / run

    @rule(run=st.sampled_from(RUNS), path=st.sampled_from(LOGS), data=st.binary(min_size=1, max_size=100))
    def grow(self, run: str, path: str, data: bytes) -> None:
        append(self.far(run) / path, data)

    @rule(run=st.sampled_from(RUNS), path=st.sampled_from(WHOLES), data=st.binary(max_size=100))
    def replace(self, run: str, path: str, data: bytes) -> None:
        target = self.far(run) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_suffix(".new").write_bytes(data)
        target.with_suffix(".new").replace(target)

    @rule(run=st.sampled_from(RUNS), data=st.binary(min_size=1, max_size=50), is_whole=st.booleans())
    def request(self, run: str, data: bytes, is_whole: bool) -> None:  # noqa: FBT001
        append(self.home.run(run).control, data.replace(b"\n", b" ") + (b"\n" if is_whole else b""))

    @rule(calls=st.integers(0, 5), acts=st.booleans())
    def go_until_it_breaks(self, calls: int, acts: bool) -> None:  # noqa: FBT001
        self.link.calls_left, self.link.acts = calls, acts
        for step in (self.ferry._round, self.ferry._push_all, self.ferry._round):
            with suppress(Transient):
                step()
        self.link.calls_left = 1 << 30

    @rule()
    def go(self) -> None:
        self.ferry._round()
        self.ferry._push_all()

    @rule()
    def restart_the_bridge(self) -> None:
        self.link.restart()

    @rule()
    def start_again(self) -> None:
        self.ferry = Ferry(self.link, self.home, name="a")
        for run in RUNS:
            self.ferry.follow(run)

    @rule()
    def finish(self) -> None:
        launch = self.ferry._since  # any that was not asked about before
        for run in RUNS:
            assert not self.ferry.finish(run, launch)  # type: ignore[arg-type]
        rounds = 0
        while not all(self.ferry.finish(run, launch) for run in RUNS if self.has_result(run)):  # type: ignore[arg-type]
            self.ferry._round()
            rounds += 1
            assert rounds < 4
        self.ferry._push_all()
        for run in RUNS:
            if self.has_result(run):
                assert files_of(self.home.run(run).path) == files_of(self.far(run))

    def has_result(self, run: str) -> bool:
        return (self.far(run) / "attempts/1/result.json").exists()

    @invariant()
    def a_copy_is_a_beginning(self) -> None:
        for run in RUNS:
            for path in LOGS:
                copy = self.home.run(run).path / path
                if copy.exists():
                    assert (self.far(run) / path).read_bytes().startswith(copy.read_bytes())
            there = self.far(run) / "control.jsonl"
            if there.exists():
                assert self.home.run(run).control.read_bytes().startswith(there.read_bytes())


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def files_of(root: Path) -> dict[str, bytes]:
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    whole = found.get("control.jsonl", b"")
    found["control.jsonl"] = whole[: whole.rfind(b"\n") + 1]
    return {path: data for path, data in found.items() if not path.endswith(".new")}


TestFerrying = Ferrying.TestCase
TestFerrying.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
