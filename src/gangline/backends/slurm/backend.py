"""The backend of a Slurm cluster: batch jobs over one bridge; see `docs/adr/0025-slurm-bridge.md`.

It keeps nothing in memory that a restarted server would miss: a job is found again by its token, and what is tried is
noted in the launch's folder first.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Protocol

from gangline.agent import bundle
from gangline.backends.slurm.ahead import SlurmAhead, let_settle
from gangline.backends.slurm.capacity import decide_capacity, decide_cpus, decide_parts, in_partitions
from gangline.backends.slurm.caretaker import Caretaker
from gangline.backends.slurm.census import take_census
from gangline.backends.slurm.doctor import examine
from gangline.backends.slurm.fitting import OVERRIDES, explain_partition, find_misfit
from gangline.backends.slurm.gate import Gate
from gangline.backends.slurm.link import Link
from gangline.backends.slurm.lookup import find_job
from gangline.backends.slurm.options import check_options, merge_for_script, merge_options
from gangline.backends.slurm.render import JobTerms, decide_cpus_per_node, render_job, render_node, render_shell
from gangline.backends.slurm.site import SlurmSite
from gangline.backends.slurm.ssh import make_socket_folder, reach_of
from gangline.backends.slurm.sshconfig import fetch_config, takes_any_key
from gangline.backends.slurm.submission import Unsure, parse_job_id, parse_refusal, parse_test
from gangline.backends.slurm.sweep import Look, end_job, survey_jobs
from gangline.backends.slurm.tokens import Token, job_name, parse_token
from gangline.backends.slurm.upload import upload_run
from gangline.domain.errors import AuthFailed, BackendError, Rejected, Transient
from gangline.domain.gang import Capability, Cleared, GangSpec, Handle, Launch, Observation, Places, PoolCapacity
from gangline.domain.naming import check_variable
from gangline.domain.pool import Finding, PoolJob, PoolState, PoolStatus, SlurmPool
from gangline.domain.spec import RunSpec, SlurmOptions
from gangline.rundir.files import read_json, write_json
from gangline.rundir.home import Home
from gangline.rundir.identity import home_identity

__all__ = ["Observer", "SlurmBackend"]

_log = logging.getLogger(__name__)

_HANDLE_VERSION = 1
_SBATCH_S = 90.0
_TEST_S = 10.0
_QOS_FLAGS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,flags")
_SCANCEL_S = 60.0
_PROBED_FOR_S = 60.0
_LEAST_FREE_BYTES = 64 << 20


class Observer(Protocol):
    """What follows the jobs of one pool."""

    def observe(self, handles: Sequence[Handle]) -> Mapping[int, Observation]:
        """See `ports.Backend.observe`."""
        ...

    def cancelling(self, handle: Handle) -> None:
        """Gangline itself is about to end this job."""
        ...

    def mirrored(self, run_id: str) -> float | None:
        """When the mirror of a run last held everything, by our clock."""
        ...


class SlurmBackend:
    """Implements `gangline.ports.Backend` for one pool.

    Args:
        home: the server's state folder.
        on_close: lets go of what was opened for this backend.
        wall, monotonic: time, for tests.
    """

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.MULTI_NODE, Capability.OWN_QUEUE})

    def __init__(
        self,
        home: Home,
        pool: SlurmPool,
        link: Link,
        observer: Observer,
        *,
        on_close: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        for variable in pool.env:
            check_variable(variable, f"`env` of the pool `{pool.name}`")
        check_options(pool.defaults)
        self.pool = pool
        self._home = home
        self._link = link
        self._observer = observer
        self._on_close = on_close
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._making = threading.RLock()
        """Held by whoever makes jobs, or takes back such as nobody needs yet."""
        self._identity = home_identity(home)
        self._agent: str | None = None
        self._python: str | None = None
        self._census = take_census(pool, link)
        self._gate = Gate(pool, link, home=self._identity, wall=wall)
        self._probed_until = 0.0
        self.site = SlurmSite(pool, link)
        self.caretaker = Caretaker(link, home, pool=pool.name)
        self.ahead = SlurmAhead(pool, home, link, self, making=self._making, wall=wall)

    def state(self) -> PoolState:
        return self._link.state()

    def examine(self, *, deep: bool) -> list[Finding]:
        return examine(self.pool, self._link, home=self._home.path, deep=deep)

    def jobs(self, expected: Mapping[tuple[str, int], Handle | None], *, quiet_s: float) -> list[PoolJob]:
        """See `ports.Backend.jobs`.

        Raises:
            Transient, AuthFailed: Slurm gives no answer.
        """
        look = Look(home=self._home, identity=self._identity, wall=self._wall, mirrored=self._observer.mirrored)
        return survey_jobs(self._link, look, expected, quiet_s=quiet_s)

    def end_job(self, job: PoolJob) -> None:
        end_job(self._link, job)

    def login_command(self) -> tuple[str, ...]:
        """Opens the connection on which the bridge rides, and leaves it open."""
        reach = reach_of(self.pool, self._home.path)
        if reach is None:
            return ()
        make_socket_folder(reach)
        return tuple(reach.login_command(asks=takes_any_key(fetch_config(reach, os.environ))))

    def close(self) -> None:
        self._on_close()

    def capacity(self) -> PoolCapacity:
        kinds = self._census.answer() or ()
        parts = decide_parts(self.pool, kinds) if self._census.is_fresh() else ()
        return replace(decide_capacity(self.pool, kinds), parts=parts)

    def places(self, run_id: str) -> Places:
        work = self.pool.work
        return Places(run_dir=f"{work}/runs/{run_id}", objects=f"{work}/objects", answers=f"{work}/answers")

    def lane(self, spec: RunSpec) -> str:
        """Its partition; of an existing script, the one that it names."""
        asked = spec.slurm.partition or spec.slurm.directives.get("partition") or self.pool.defaults.partition
        return asked or ""

    def render(self, gang: GangSpec) -> Launch:
        """See `ports.Backend.render`; the pool is asked once for its interpreter, where nobody has named one.

        The launch's gang has what the pool's defaults add.

        Raises:
            SpecInvalid: an option that sbatch must not be given.
            Transient, AuthFailed: the pool has to be asked, and does not answer.
        """
        options = self._options(gang)
        check_options(options)
        return self._render(gang, options, self._terms(gang, options))

    def _render(self, gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> Launch:
        folder = f"launches/{gang.launch:03d}"
        files = {
            f"{folder}/job.sh": render_job(gang, options, terms),
            f"{folder}/node.sh": render_node(gang, options, terms),
            f"{folder}/shell.sh": render_shell(gang, terms),
        }
        given = replace(gang, slurm=options, cpus_per_node=decide_cpus_per_node(gang, options, terms))
        return Launch(backend=self.name, commands=(self._sbatch(gang),), files=files, gang=given)

    def check(self, launch: Launch) -> str:
        """See `ports.Backend.check`: Slurm looks at the script without taking it. Waits for no connection to open."""
        if self._link.state().status is not PoolStatus.READY:
            return ""
        kinds, options = self._census.answer() or (), launch.gang.slurm
        try:
            ran = self._link.run(("sbatch", "--test-only"), stdin=_script_of(launch).encode(), timeout_s=_TEST_S)
            misfit = find_misfit(launch.gang, options, kinds, self.pool)
            overrides = misfit is not None and OVERRIDES.search(self._link.run(_QOS_FLAGS, timeout_s=_TEST_S).out)
        except (Transient, AuthFailed):
            return ""
        try:
            said = parse_test(ran)
        except Rejected as refused:
            raise explain_partition(options, kinds, refused) from None
        if misfit is not None and not overrides:
            raise misfit
        return said

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """See `ports.Backend.submit`.

        Raises:
            Rejected: Slurm refuses the job, or the work folder cannot be used.
            NoCapacity: Slurm takes no more jobs now, or the pool hands over no more.
            Transient, AuthFailed: nothing is known; the next call looks for the job first.
        """
        with self._making:
            return self._submit(launch, key)

    def _submit(self, launch: Launch, key: str) -> Handle:
        gang = launch.gang
        if launch.backend != self.name or launch.commands != (self._sbatch(gang),):
            raise Rejected(f"Launch {gang.launch} of {gang.run_id} was not rendered by the pool `{self.pool.name}`")
        note = self._note(gang.run_id, gang.launch)
        earlier = read_json(note)
        if earlier is not None and earlier["key"] != key:
            raise Rejected(f"Launch {gang.launch} of {gang.run_id} was submitted under another key")
        waiting = self.ahead.take_over(launch) if earlier is None else None
        if waiting is not None:  # from here on agents may begin
            earlier = {"version": 1, "key": key, "tried": waiting[1]}
            write_json(note, earlier, durable=True)
        if earlier is not None:
            found = waiting[0] if waiting is not None else self._find(gang)
            if found is not None:
                self._tell_waiting(gang)
                return self._handle(gang, found, submitted=earlier["tried"])
            let_settle(earlier["tried"], self._wall())
        self._pass_gate(launch)
        self._probe()
        upload_run(self._home, self._link, gang.run_id, self._files(gang, launch))
        tried = self._wall()
        write_json(note, {"version": 1, "key": key, "tried": tried}, durable=True)
        job = self._run_sbatch(launch, note)
        return self._handle(gang, job, submitted=tried)

    def _tell_waiting(self, gang: GangSpec) -> None:
        """What to start, for agents of a job that was made before that was known."""
        if self.ahead.holds(gang):
            upload_run(self._home, self._link, gang.run_id, [self._spec_of(gang)])
            self.ahead.forget(gang.run_id)

    def make_after(self, gang: GangSpec, job: str, *, noted: Callable[[], None]) -> str:
        """See `ahead.Maker.make_after`. What the run itself had to wait for has happened."""
        options = replace(self._options(gang), dependency=f"afterany:{job}")
        await_s = max(1, math.ceil(self.pool.ahead_wait_s))
        launch = self._render(gang, options, replace(self._terms(gang, options), await_s=await_s))
        self._pass_gate(launch)
        self._probe()
        noted()
        for name, text in launch.files.items():
            self._link.write(f"runs/{gang.run_id}/{name}", text.encode())
        ran = self._link.run(launch.commands[0], timeout_s=_SBATCH_S)
        made = parse_job_id(ran.out) if ran.rc == 0 else None
        if made is None:
            raise parse_refusal(ran)
        return made

    def may_have_started(self, run_id: str, launch: int) -> bool:
        return self._note(run_id, launch).exists()

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        return dict(self._observer.observe(handles))

    def cancel(self, handle: Handle) -> None:
        """Have Slurm end the job: signal, its own grace, kill. Returns at once."""
        self._observer.cancelling(handle)
        threading.Thread(target=self._scancel, args=(handle,), name="gangline-scancel", daemon=True).start()

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:
        """See `ports.Backend.clear`."""
        return self.caretaker.clear(run_id, keep_checkpoints=keep_checkpoints)

    def describe(self, handle: Handle) -> dict[str, str]:
        job, folder = handle.data["job"], handle.data["job_dir"]
        log = f"{folder}/job.log"
        return {
            "job": job,
            "log": log,
            "queue": self._typed("squeue", f"--jobs={job}"),
            "details": self._typed("scontrol", "show", "job", job),
            "follow": self._typed("tail", "-F", log),
            **self._steps_into(job, folder),
        }

    def _steps_into(self, job: str, folder: str) -> dict[str, str]:
        """How a person starts something on a node of the job: the way there, the step, and the script that it runs."""
        reach = reach_of(self.pool, self._home.path)
        run_dir = folder.rpartition("/launches/")[0]
        alone = ("--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none")
        return {
            "reach": "" if reach is None else shlex.join(reach.shell_command()),
            "step": shlex.join(["srun", f"--jobid={job}", f"--chdir={run_dir}", *alone]),
            "shell": f"{folder}/shell.sh",
        }

    # What a launch is made of

    def _options(self, gang: GangSpec) -> SlurmOptions:
        merge = merge_options if gang.slurm.script is None else merge_for_script
        return merge(self.pool.defaults, gang.slurm)

    def _terms(self, gang: GangSpec, options: SlurmOptions) -> JobTerms:
        known = self._census.answer() or ()
        kinds = in_partitions(known, options.partition) or known
        cpus = decide_cpus(self.pool, kinds, gpus=gang.gpus_per_node, ranks=gang.procs_per_node)
        return JobTerms(
            run_dir=self.run_dir(gang.run_id),
            agent=f"{self.pool.work}/agents/{self._agent_name()}",
            python=self._interpreter(),
            token=self.token(gang),
            cpus_per_node=cpus,
            env=self.pool.env,
        )

    def token(self, gang: GangSpec) -> Token:
        """What the job of a launch bears."""
        return Token(home=self._identity, run_id=gang.run_id, launch=gang.launch)

    def _agent_name(self) -> str:
        with self._lock:
            if self._agent is None:
                self._agent = bundle.bundle_name(bundle.render_bundle())
            return self._agent

    def _interpreter(self) -> str:
        """Of the agents."""
        if self._python is None:
            self._python = self.pool.python or self._link.python(None)[0]
        return self._python

    def _sbatch(self, gang: GangSpec) -> tuple[str, ...]:
        return ("sbatch", "--parsable", f"{self._job_dir(gang)}/job.sh")

    def _job_dir(self, gang: GangSpec) -> str:
        return f"{self.run_dir(gang.run_id)}/launches/{gang.launch:03d}"

    def run_dir(self, run_id: str) -> str:
        """The run directory on the cluster."""
        return self.places(run_id).run_dir

    def _files(self, gang: GangSpec, launch: Launch) -> list[str]:
        return [self._spec_of(gang), *launch.files]

    def _spec_of(self, gang: GangSpec) -> str:
        return f"launches/{gang.launch:03d}/launch.json"

    # Submission

    def _probe(self) -> None:
        """The work folder takes files; what it says holds for a while."""
        if self._monotonic() < self._probed_until:
            return
        work = self.pool.work
        found = self._link.probe(work)
        fix = f"Correct `work` of the pool `{self.pool.name}`; `gangline pools doctor {self.pool.name}` tries it again."
        if not found.exists or not found.writable:
            what = "cannot be written" if found.exists else "is not there and cannot be made"
            raise Rejected(f"The work folder {work} of the pool `{self.pool.name}` {what}", why=found.why_not, fix=fix)
        if found.free_bytes < _LEAST_FREE_BYTES:
            why = f"{found.free_bytes >> 20} MB are left, also for logs and checkpoints"
            raise Rejected(f"The work folder {work} of the pool `{self.pool.name}` is full", why=why, fix=fix)
        self._probed_until = self._monotonic() + _PROBED_FOR_S

    def _pass_gate(self, launch: Launch) -> None:
        self._gate.check(launch.gang, launch.gang.slurm, _script_of(launch))

    def _note(self, run_id: str, launch: int) -> Path:
        """It is there from before `sbatch` is called until it is certain that there is no job."""
        return self._home.run(run_id).launch(launch).path / "submitting.json"

    def _run_sbatch(self, launch: Launch, note: Path) -> str:
        """The id of the new job; where it is certain that there is none, the note is taken back."""
        ran = self._link.run(launch.commands[0], timeout_s=_SBATCH_S)
        job = parse_job_id(ran.out) if ran.rc == 0 else None
        if job is not None:
            return job
        refusal = parse_refusal(ran)
        if not isinstance(refusal, Unsure):
            note.unlink(missing_ok=True)
            raise refusal
        found = self._find(launch.gang)
        if found is None:
            raise refusal
        return found

    def _find(self, gang: GangSpec) -> str | None:
        run_dir, but = self.run_dir(gang.run_id), self.ahead.taken_back(gang.run_id, gang.launch)
        return find_job(self._link, self.token(gang), run_dir=run_dir, but=but)

    def _handle(self, gang: GangSpec, job: str, *, submitted: float) -> Handle:
        data = {
            "job": job,
            "token": str(self.token(gang)),
            "submitted": submitted,
            "cluster": self.pool.name,
            "job_dir": self._job_dir(gang),
        }
        return Handle(backend=self.name, version=_HANDLE_VERSION, data=data)

    # The end

    def _scancel(self, handle: Handle) -> None:
        """By number and name: a number that another job bears by now ends nothing."""
        token = parse_token(handle.data["token"])
        name = [f"--name={job_name(token.run_id, token.launch)}"] if token is not None else []
        try:
            ran = self._link.run(("scancel", *name, handle.data["job"]), timeout_s=_SCANCEL_S)
        except BackendError as error:
            _log.warning("job %s was not cancelled: %s", handle.data["job"], error)
            return
        if ran.rc != 0:
            _log.warning("scancel %s ended with %s: %s", handle.data["job"], ran.rc, ran.err.strip())

    def _typed(self, *words: str) -> str:
        """A command as a person would type it here."""
        if self.pool.ssh is None:
            return shlex.join(words)
        return shlex.join(["ssh", *self.pool.ssh_options, self.pool.ssh, *words])


def _script_of(launch: Launch) -> str:
    return next(text for name, text in launch.files.items() if name.endswith("/job.sh"))
