"""The backend of a Ray cluster: one job for each launch, its agents in a placement group (ADR 45).

It keeps nothing in memory that a restarted server would miss: a job is known by its `submission_id`, and what is tried
is noted in the launch's folder first.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from gangline.agent import bundle
from gangline.backends.asking import Asked
from gangline.backends.ray.api import Job, JobsApi, RayNode
from gangline.backends.ray.doctor import examine
from gangline.backends.ray.record import Note, read_note, read_state, write_note
from gangline.backends.ray.render import REQUEST, driver_name, driver_text, parse_id, render_launch, submission_id
from gangline.backends.ray.site import RaySite
from gangline.backends.ray.truth import judge
from gangline.backends.ray.watch import Watcher
from gangline.domain.errors import BackendError, Rejected
from gangline.domain.gang import Capability, Cleared, GangSpec, Handle, Launch, Observation, Places, PoolCapacity
from gangline.domain.pool import Finding, JobStanding, PoolJob, PoolState, RayPool, Spread
from gangline.domain.spec import RunSpec
from gangline.rundir.files import write_text
from gangline.rundir.home import Home
from gangline.rundir.identity import home_identity
from gangline.rundir.layout import LaunchDir, RunDir

__all__ = ["RayBackend", "open_ray"]

_HANDLE_VERSION = 1
_MOST = 1_000_000
_MANY_BYTES = 1 << 60


class RayBackend:
    """Implements `gangline.ports.Backend` for one pool.

    Args:
        home: the server's state folder, which every Ray node sees under the same path.
        monotonic: time, for tests.
    """

    name: ClassVar[str] = "ray"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.SHARED_FILES, Capability.MULTI_NODE, Capability.OWN_QUEUE}
    )

    def __init__(
        self,
        home: Home,
        pool: RayPool,
        api: JobsApi,
        watcher: Watcher,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self._home = home
        self._api = api
        self._watcher = watcher
        self._monotonic = monotonic
        self._identity = home_identity(home)
        self._submitted: dict[str, float] = {}
        self._nodes = Asked(self._ask_nodes, name="gangline-ray-nodes", monotonic=monotonic)
        self.site = RaySite(pool)
        self.ahead = None

    def state(self) -> PoolState:
        return self._watcher.state()

    def examine(self, *, deep: bool) -> list[Finding]:
        found = examine(self.pool, self._api, self._home, deep=deep)
        self._watcher.look()
        return found

    def jobs(self, expected: Mapping[tuple[str, int], Handle | None], *, quiet_s: float) -> list[PoolJob]:  # noqa: ARG002
        """See `ports.Backend.jobs`; jobs that are over are left out.

        Raises:
            Transient, AuthFailed: the Jobs API gives no answer.
        """
        return [found for job in self._api.jobs() if (found := self._stand(job, expected)) is not None]

    def end_job(self, job: PoolJob) -> None:
        self._api.stop(job.job)

    def login_command(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self._watcher.close()
        self._api.close()

    def capacity(self) -> PoolCapacity:
        """What the cluster has, as it said last; where it does not say, it has the word itself."""
        nodes = self._nodes.answer()
        if not nodes or self.pool.max_nodes:
            devices = tuple(str(number) for number in range(_MOST // 10))
            most = self.pool.max_nodes or _MOST
            return PoolCapacity(
                nodes=most,
                ranks=_MOST,
                cpus=_MOST,
                memory_bytes=_MANY_BYTES,
                devices=devices,
                knows_devices=any(node.gpus for node in nodes or ()),
            )
        return PoolCapacity(
            nodes=len(nodes) if self.pool.spread is Spread.STRICT else _MOST,
            ranks=_MOST,
            cpus=int(sum(node.cpus for node in nodes)),
            memory_bytes=int(sum(node.memory_bytes for node in nodes)) or _MANY_BYTES,
            devices=tuple(str(number) for number in range(int(sum(node.gpus for node in nodes)))),
        )

    def places(self, run_id: str) -> Places:
        home = self._home
        return Places(run_dir=str(home.run(run_id).path), objects=str(home.objects), answers=str(home.answers))

    def lane(self, spec: RunSpec) -> str:  # noqa: ARG002 - it has but one queue
        return ""

    def render(self, gang: GangSpec) -> Launch:
        agent = self._home.path / bundle.bundle_name(bundle.render_bundle())
        driver = self._home.path / driver_name()
        return render_launch(gang, self.pool, home=self._identity, agent=str(agent), driver=str(driver))

    def check(self, launch: Launch) -> str:  # noqa: ARG002 - Ray says nothing of what it is not given
        return ""

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """See `ports.Backend.submit`.

        Raises:
            Rejected: Ray refuses the job, or the launch's folder belongs to another key.
            Transient, AuthFailed: nothing is known; the next call asks for the same job.
        """
        gang = launch.gang
        folder = _folder(gang.run_dir, gang.launch)
        if launch.backend != self.name or len(launch.commands) != gang.nodes:
            raise Rejected(f"Launch {gang.launch} of {gang.run_id} was not rendered by the pool `{self.pool.name}`")
        note = read_note(folder)
        if note is not None and note.key != key:
            raise Rejected(f"Launch {gang.launch} of {gang.run_id} was submitted under another key")
        if note is not None and note.taken:
            return self._handle(gang, note)
        session = self._session()
        if note is None:
            note = Note(key=key, session=session)
            write_note(folder, note)
        if note.session == session:  # the cluster that was asked is no more otherwise, and nothing of it
            self._hand_over(launch, folder)
            write_note(folder, Note(key=key, session=session, taken=True))
        return self._handle(gang, note)

    def may_have_started(self, run_id: str, launch: int) -> bool:
        return read_note(self._home.run(run_id).launch(launch)) is not None

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        if not handles:
            return {}
        look = self._watcher.newest()
        return {
            index: judge(
                look,
                handle.data["submission_id"],
                session=handle.data["session"],
                submitted=self._submitted.get(handle.data["submission_id"], float("-inf")),
                state=read_state(_folder(handle.data["run_dir"], handle.data["launch"])),
            )
            for index, handle in enumerate(handles)
        }

    def cancel(self, handle: Handle) -> None:
        """Have Ray end the job: its driver ends the agents, then itself. Returns at once."""
        threading.Thread(target=self._stop, args=(handle,), name="gangline-ray-stop", daemon=True).start()

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:  # noqa: ARG002 - the server's folder is the run's
        return Cleared()

    def describe(self, handle: Handle) -> dict[str, str]:
        job, address = handle.data["submission_id"], self.pool.address
        return {
            "job": job,
            "page": f"{address}/#/jobs/{job}",
            "details": f"ray job status --address {address} {job}",
            "follow": f"ray job logs --address {address} --follow {job}",
        }

    def _session(self) -> str:
        try:
            session = self._api.version().session
        except BackendError as error:
            self._watcher.note(error)
            raise
        self._watcher.note(None)
        return session

    def _hand_over(self, launch: Launch, folder: LaunchDir) -> None:
        bundle.build(self._home.path)
        driver = self._home.path / driver_name()
        if not driver.exists():
            write_text(driver, driver_text())
        for name, text in launch.files.items():
            write_text(Path(launch.gang.run_dir, name), text)
        request = json.loads(launch.files[str(Path(folder.path, REQUEST).relative_to(launch.gang.run_dir))])
        self._api.submit(request)
        self._submitted[request["submission_id"]] = self._monotonic()

    def _handle(self, gang: GangSpec, note: Note) -> Handle:
        data = {
            "run_dir": gang.run_dir,
            "launch": gang.launch,
            "session": note.session,
            "submission_id": submission_id(self._identity, gang.run_id, gang.launch),
        }
        return Handle(backend=self.name, version=_HANDLE_VERSION, data=data)

    def _stop(self, handle: Handle) -> None:
        with suppress(BackendError):  # who asked for it asks again
            self._api.stop(handle.data["submission_id"])

    def _ask_nodes(self) -> Sequence[RayNode] | None:
        try:
            return self._api.nodes()
        except BackendError:
            return None

    def _stand(self, job: Job, expected: Mapping[tuple[str, int], Handle | None]) -> PoolJob | None:
        ours = parse_id(job.submission_id)
        if ours is None or job.is_over:
            return None
        standing, text, fix = JobStanding.FOLLOWED, "", ""
        if ours.home != self._identity:
            standing, text = JobStanding.OTHERS, "It belongs to another server."
        elif (ours.run_id, ours.launch) not in expected:
            standing, text = JobStanding.ORPHAN, "No run counts on it."
            fix = f"End it: ray job stop --address {self.pool.address} {job.submission_id}"
        return PoolJob(
            job=job.submission_id,
            state=job.status,
            run_id=ours.run_id,
            launch=ours.launch,
            since=job.started,
            standing=standing,
            text=text,
            fix=fix,
        )


def open_ray(home: Home, pool: RayPool) -> RayBackend:
    """The backend of a pool, its thread running; `close` ends it.

    The entry point `ray` of `gangline.backends`.
    """
    api = JobsApi(pool)
    watcher = Watcher(api, poll_s=pool.poll_s)
    watcher.start()
    return RayBackend(home, pool, api, watcher)


def _folder(run_dir: str, launch: int) -> LaunchDir:
    return RunDir(Path(run_dir)).launch(launch)
