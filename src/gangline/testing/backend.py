"""A backend without machines, which does what a test tells it: refuse, lie, forget, stay silent, kill."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gangline.domain.errors import BackendError, NoCapacity, Rejected, Transient
from gangline.domain.gang import (
    Capability,
    Cleared,
    GangSpec,
    Handle,
    Launch,
    Liveness,
    Observation,
    Places,
    PoolCapacity,
)
from gangline.domain.phase import Reason
from gangline.domain.pool import Finding, PoolJob, PoolState, Verdict
from gangline.domain.spec import RunSpec
from gangline.ports import Ahead
from gangline.testing.builders import make_capacity
from gangline.testing.site import FakeSite

__all__ = ["FakeBackend", "FakeLaunch"]


@dataclass(slots=True, kw_only=True)
class FakeLaunch:
    """One launch that the fake holds."""

    launch: Launch
    key: str
    liveness: Liveness = Liveness.ALIVE
    cancelled: bool = False
    """Ended from outside Gangline."""
    preempted: bool = False
    reason: Reason | None = None
    lost_nodes: set[int] = field(default_factory=set)
    lie: Observation | None = None
    detail: str = ""
    hosts: tuple[str, ...] = ()
    """Of its nodes, in their order; a host holds one node at a time."""
    ends_at: float | None = None
    """When its machines are taken back."""
    is_copied: bool = False
    """All that a launch which is over has left is in the mirror."""


class FakeBackend:
    """Implements `gangline.ports.Backend` in memory. Launches live until a test or `cancel` ends them.

    Args:
        capacity: what the pool holds; default `make_capacity()`. If it names hosts, nodes are placed on them.
        pending: launches begin PENDING, as on a cluster, until `begin` is called.
        home: folder of the server's state, where agents find everything.
    """

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.SHARED_FILES, Capability.MULTI_NODE, Capability.DEVICES}
    )

    def __init__(self, capacity: PoolCapacity | None = None, *, pending: bool = False, home: str = "/fake") -> None:
        self._home = home
        self._capacity = capacity or make_capacity()
        self._pending = pending
        self._refusals: deque[BackendError] = deque()
        self._lost_answers = 0
        self._silent = False
        self._may_answer = threading.Event()
        self._may_answer.set()
        self.launches: dict[str, FakeLaunch] = {}
        """Everything that was ever started, by idempotency key."""
        self.submits: list[str] = []
        """The key of every call of `submit`, those that were refused included."""
        self.cancels: list[Handle] = []
        self.site = FakeSite()
        self.ahead: Ahead | None = None
        self.pool_state = PoolState()
        """What `state` says."""
        self.closed = False
        self.pool_jobs: list[PoolJob] = []
        """What `jobs` says."""
        self.surveys: list[tuple[dict[tuple[str, int], Handle | None], float]] = []
        self.ended_jobs: list[PoolJob] = []

    def state(self) -> PoolState:
        return self.pool_state

    def examine(self, *, deep: bool) -> list[Finding]:
        return [Finding(check="fake", verdict=Verdict.OK, text="looked at closely" if deep else "looked at")]

    def jobs(self, expected: Mapping[tuple[str, int], Handle | None], *, quiet_s: float) -> list[PoolJob]:
        self.surveys.append((dict(expected), quiet_s))
        return list(self.pool_jobs)

    def end_job(self, job: PoolJob) -> None:
        self.ended_jobs.append(job)

    def login_command(self) -> tuple[str, ...]:
        return ("ssh", "fake")

    def close(self) -> None:
        self.closed = True

    def capacity(self) -> PoolCapacity:
        return self._capacity

    def places(self, run_id: str) -> Places:
        """Below the folder that the fake was given."""
        home = self._home
        return Places(run_dir=f"{home}/runs/{run_id}", objects=f"{home}/objects", answers=f"{home}/answers")

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:  # noqa: ARG002 - as the local one
        return Cleared()

    def describe(self, handle: Handle) -> dict[str, str]:
        return {"job": str(handle.data["key"])}

    def lane(self, spec: RunSpec) -> str:
        return spec.slurm.partition or ""

    def render(self, gang: GangSpec) -> Launch:
        nodes = range(gang.nodes)
        commands = tuple(("fake-agent", gang.run_dir, str(gang.launch), str(node)) for node in nodes)
        return Launch(backend=self.name, commands=commands, gang=gang)

    def check(self, launch: Launch) -> str:  # noqa: ARG002 - it says so when it is given one
        return ""

    def submit(self, launch: Launch, *, key: str) -> Handle:
        self.submits.append(key)
        self._may_answer.wait()
        if self._refusals and (key not in self.launches or isinstance(self._refusals[0], Transient)):
            raise self._refusals.popleft()
        if key not in self.launches:
            begun = Liveness.PENDING if self._pending else Liveness.ALIVE
            hosts = self._place(launch.gang)
            self.launches[key] = FakeLaunch(launch=launch, key=key, liveness=begun, hosts=hosts)
        if self._lost_answers:
            self._lost_answers -= 1
            raise Transient("The fake backend did not answer", why="The launch may have been made all the same")
        return Handle(backend=self.name, version=1, data={"key": key})

    def may_have_started(self, run_id: str, launch: int) -> bool:
        gangs = [held.launch.gang for held in self.launches.values()]
        return any((gang.run_id, gang.launch) == (run_id, launch) for gang in gangs)

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        return {index: self._observe_one(handle) for index, handle in enumerate(handles)}

    def cancel(self, handle: Handle) -> None:
        self.cancels.append(handle)
        held = self.launches.get(handle.data["key"])
        if held is not None:
            held.liveness = Liveness.GONE

    def find(self, which: Handle | str) -> FakeLaunch:
        """The launch of a handle, or the newest one of a run id.

        Raises:
            Rejected: there is none.
        """
        if isinstance(which, Handle):
            found = [self.launches[which.data["key"]]] if which.data["key"] in self.launches else []
        else:
            found = [held for held in self.launches.values() if held.launch.gang.run_id == which]
        if not found:
            raise Rejected(f"The fake backend knows no launch of {which}")
        return found[-1]

    def refuse(self, error: BackendError, *, times: int = 1) -> None:
        """The next calls of `submit` raise `error` and start nothing."""
        self._refusals.extend([error] * times)

    def lose_answers(self, times: int = 1) -> None:
        """The next calls of `submit` start the launch, and raise Transient all the same."""
        self._lost_answers += times

    def hold(self, *, on: bool = True) -> None:
        """Calls of `submit` hang, until it is switched off."""
        if on:
            self._may_answer.clear()
        else:
            self._may_answer.set()

    def silence(self, *, on: bool = True) -> None:
        """Answer UNKNOWN for everything, until it is switched off."""
        self._silent = on

    def begin(self, which: Handle | str) -> None:
        """A pending launch has got its machines."""
        held = self.find(which)
        held.liveness, held.detail, held.preempted, held.reason = Liveness.ALIVE, "", False, None

    def pend(self, which: Handle | str, detail: str = "", *, preempted: bool = False) -> None:
        """A launch waits for machines, and why; one that had begun is put back into the backend's queue."""
        held = self.find(which)
        held.liveness, held.detail, held.preempted = Liveness.PENDING, detail, preempted

    def kill(
        self, which: Handle | str, *, from_outside: bool = False, reason: Reason | None = None, detail: str = ""
    ) -> None:
        """All agents are gone; with `from_outside` the backend knows that a person ended them."""
        held = self.find(which)
        held.liveness, held.cancelled, held.reason, held.detail = Liveness.GONE, from_outside, reason, detail

    def preempt(self, which: Handle | str) -> None:
        """The backend took the machines away."""
        held = self.find(which)
        held.liveness, held.preempted = Liveness.GONE, True

    def lose_node(self, which: Handle | str, node: int) -> None:
        """The agent of one node is gone; the others live."""
        self.find(which).lost_nodes.add(node)

    def lie(self, which: Handle | str, observation: Observation | None) -> None:
        """Answer this, whatever is true; None ends the lie."""
        self.find(which).lie = observation

    def forget(self, which: Handle | str) -> None:
        """Know nothing of the launch any more."""
        del self.launches[self.find(which).key]

    def live(self) -> list[FakeLaunch]:
        """Launches that are not over."""
        return [held for held in self.launches.values() if held.liveness is not Liveness.GONE]

    def _place(self, gang: GangSpec) -> tuple[str, ...]:
        """The first free hosts that are not excluded."""
        if not self._capacity.hosts:
            return ()
        taken = {host for held in self.live() for host in held.hosts} | set(gang.exclude_hosts)
        free = [host for host in self._capacity.hosts if host not in taken]
        if len(free) < gang.nodes:
            raise NoCapacity(f"The fake backend has {len(free)} free hosts, {gang.nodes} asked")
        return tuple(free[: gang.nodes])

    def _observe_one(self, handle: Handle) -> Observation:
        if self._silent:
            return Observation(liveness=Liveness.UNKNOWN, detail="the fake backend is silent")
        held = self.launches.get(handle.data["key"])
        if held is None:
            return Observation(liveness=Liveness.GONE, detail="no such launch")
        if held.lie is not None:
            return held.lie
        return Observation(
            liveness=held.liveness,
            detail=held.detail,
            cancelled=held.cancelled,
            preempted=held.preempted,
            reason=held.reason,
            lost_nodes=tuple(sorted(held.lost_nodes)),
            ends_at=held.ends_at if held.liveness is Liveness.ALIVE else None,
        )
