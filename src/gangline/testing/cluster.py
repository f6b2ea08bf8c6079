"""A fake cluster that lies elsewhere: agents have a file system of their own, and the server a mirror of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from gangline.domain.gang import Capability, Handle, Launch, Liveness, Observation, PoolCapacity
from gangline.ports import Clock
from gangline.rundir.layout import RunDir
from gangline.rundir.mirror import apply
from gangline.testing.ahead import FakeAhead
from gangline.testing.backend import FakeBackend
from gangline.testing.clock import FakeClock
from gangline.testing.link import pull_run

__all__ = ["FakeCluster", "FakeElsewhere"]


class FakeElsewhere(FakeBackend):
    """A `FakeBackend` whose agents do not see the server's files; `ferry` is what a real one does all the time.

    Args:
        far: folder that stands for the file system of the cluster.
        home: folder of the server's state; the mirrors are below it.
        clock: what the freshness of mirrors is told by.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.MULTI_NODE})

    def __init__(
        self,
        far: Path,
        home: Path,
        *,
        clock: Clock | None = None,
        capacity: PoolCapacity | None = None,
        pending: bool = False,
    ) -> None:
        super().__init__(capacity, pending=pending, home=str(far))
        self._far = far
        self._near = home
        self._clock = clock or FakeClock()
        self._mirrored: dict[str, float] = {}

    def far(self, run_id: str) -> RunDir:
        """The run directory of the agents."""
        return RunDir(self._far / "runs" / run_id)

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """As for every backend; what agents are told is uploaded first."""
        near, far = self._mirror(launch.gang.run_id), self.far(launch.gang.run_id)
        told, number = near.launch(launch.gang.launch).spec, launch.gang.launch
        if told.exists():
            far.launch(number).spec.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(told, far.launch(number).spec)
        return super().submit(launch, key=key)

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        """GONE is said once the mirror has everything."""
        return {index: self._from_afar(handle, seen) for index, (handle, seen) in self._pairs(handles).items()}

    def ferry(self, run_id: str | None = None) -> None:
        """Bring the mirror of a run, or of all, up to date, and push what the server has asked of its leader."""
        known = {held.launch.gang.run_id for held in self.launches.values()}
        for one in [run_id] if run_id is not None else sorted(known):
            if self._mirror(one).path.is_dir():
                self._ferry_files(one)
            self._mirrored[one] = self._clock.now()
            for held in self.launches.values():
                if held.launch.gang.run_id == one and held.liveness is Liveness.GONE:
                    held.is_copied = True

    def _ferry_files(self, run_id: str) -> None:
        near, far = self._mirror(run_id), self.far(run_id)
        pull_run(far.path, near.path)
        for launch in far.launches():
            _copy_sign(launch.alive, near.launch(launch.number).alive)
        _push_control(near, far)

    def _pairs(self, handles: Sequence[Handle]) -> dict[int, tuple[Handle, Observation]]:
        seen = super().observe(handles)
        return {index: (handle, seen[index]) for index, handle in enumerate(handles)}

    def _from_afar(self, handle: Handle, seen: Observation) -> Observation:
        held = self.launches.get(handle.data["key"])
        if held is None or seen.liveness is Liveness.UNKNOWN:
            return seen
        seen = replace(seen, mirrored=self._mirrored.get(held.launch.gang.run_id))
        if seen.liveness is Liveness.GONE and not held.is_copied:
            return Observation(
                liveness=Liveness.ALIVE, detail="its last files are on their way", mirrored=seen.mirrored
            )
        return seen

    def _mirror(self, run_id: str) -> RunDir:
        return RunDir(self._near / "runs" / run_id)


class FakeCluster(FakeElsewhere):
    """One that has a queue of its own, too: launches begin PENDING, until `begin` is called."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.MULTI_NODE, Capability.OWN_QUEUE})

    def __init__(
        self, far: Path, home: Path, *, clock: Clock | None = None, capacity: PoolCapacity | None = None
    ) -> None:
        unknown = PoolCapacity(nodes=0, ranks=0, cpus=0, memory_bytes=0)
        super().__init__(far, home, clock=clock, capacity=capacity or unknown, pending=True)
        self.ahead: FakeAhead = FakeAhead(self.may_have_started)

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """As for every backend; what waited for this launch becomes it."""
        handle = super().submit(launch, key=key)
        self.ahead.take_over(launch.gang)
        return handle

    def begin(self, which: Handle | str) -> None:
        """A pending launch has got its machines, for as long as it has asked for."""
        super().begin(which)
        held = self.find(which)
        limit_s = held.launch.gang.time_limit_s
        held.ends_at = None if limit_s is None else self._clock.now() + limit_s


def _copy_sign(far: Path, near: Path) -> None:
    with suppress(FileNotFoundError):
        touched = far.stat().st_mtime_ns
        near.parent.mkdir(parents=True, exist_ok=True)
        near.touch()
        os.utime(near, ns=(touched, touched))


def _push_control(near: RunDir, far: RunDir) -> None:
    with suppress(FileNotFoundError):
        data = near.control.read_bytes()
        there = far.control.stat().st_size if far.control.exists() else 0
        apply(far.path, "control.jsonl", there, data[there:])
