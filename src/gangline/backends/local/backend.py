"""The backend of the server's own machine.

Agents are detached processes that outlive the server. Nothing is known of them but what the system's process table and
the launch folder say, so a server that was killed and started again knows as much as before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from gangline.agent.processes import find_descendants, processes_of, send
from gangline.backends.local.detect import detect_capacity
from gangline.backends.local.processes import (
    AgentProcess,
    boot_id,
    find_by_arguments,
    has_arguments,
    send_signal,
    start_of,
)
from gangline.backends.local.record import LaunchRecord, read_record, record_path
from gangline.backends.local.render import render_agent_arguments, render_launch
from gangline.backends.local.site import LocalSite
from gangline.domain.errors import Rejected, Transient
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
from gangline.domain.pool import Finding, PoolJob, PoolState, Verdict
from gangline.domain.spec import RunSpec
from gangline.rundir.home import Home
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import LaunchDir, RunDir

__all__ = ["LocalBackend"]

_HANDLE_VERSION = 1
_PAUSE_S = 0.02


class LocalBackend:
    """Implements `gangline.ports.Backend`.

    Args:
        home: the state folder; the agent's zipapp is kept there.
        capacity: what the machine has; None: it is asked when first needed.
        agent: interpreter and agent, before the agent's own arguments; None: the zipapp, built when first needed.
        patience_s: how long agents may take to end their ranks after `cancel`, before everything is killed.
        env: the server's environment.
    """

    name: ClassVar[str] = "local"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.SHARED_FILES, Capability.MULTI_NODE, Capability.DEVICES}
    )

    def __init__(
        self,
        home: Home,
        *,
        capacity: PoolCapacity | None = None,
        agent: Sequence[str] | None = None,
        patience_s: float = 10.0,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self._home = home
        self._capacity = capacity
        self._agent = None if agent is None else tuple(agent)
        self._patience_s = patience_s
        self._env = env
        self.site = LocalSite()
        self.ahead = None
        self._lock = threading.RLock()
        self._children: list[int] = []
        self._ending: dict[tuple[str, int], threading.Thread] = {}

    def state(self) -> PoolState:
        return PoolState()

    def examine(self, *, deep: bool) -> list[Finding]:  # noqa: ARG002 - nothing here takes long
        capacity = self.capacity()
        kind = f"{capacity.device_kind} accelerators".strip() if capacity.devices else "accelerators"
        found = f"{capacity.cpus} CPUs, {capacity.memory_bytes >> 30} GiB, {len(capacity.devices)} {kind}"
        return [Finding(check="machine", verdict=Verdict.OK, text=found)]

    def jobs(self, expected: Mapping[tuple[str, int], Handle | None], *, quiet_s: float) -> list[PoolJob]:  # noqa: ARG002
        """None: this machine has no queue of its own."""
        return []

    def end_job(self, job: PoolJob) -> None:
        """There is none."""

    def login_command(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """Nothing is held: agents are processes of their own."""

    def capacity(self) -> PoolCapacity:
        with self._lock:
            if self._capacity is None:
                self._capacity = detect_capacity(self._env)
            return self._capacity

    def places(self, run_id: str) -> Places:
        home = self._home
        return Places(run_dir=str(home.run(run_id).path), objects=str(home.objects), answers=str(home.answers))

    def lane(self, spec: RunSpec) -> str:  # noqa: ARG002 - this machine has but one
        return ""

    def render(self, gang: GangSpec) -> Launch:
        return render_launch(gang, backend=self.name, agent=self._agent_command(), env=self._env)

    def check(self, launch: Launch) -> str:  # noqa: ARG002 - there is no other scheduler
        return ""

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """Start the agents that an earlier call with this key has not started; see `ports.Backend.submit`.

        Raises:
            Rejected: the launch is not one of this backend, or its folder belongs to another key.
            Transient: the machine could not start a process; none of the gang is left.
        """
        gang = launch.gang
        if launch.backend != self.name or len(launch.commands) != gang.nodes:
            raise Rejected(f"Launch {gang.launch} of {gang.run_id} was not rendered by the backend `{self.name}`")
        folder = RunDir(Path(gang.run_dir)).launch(gang.launch)
        with self._lock:
            self._reap()
            record = read_record(folder)
            if record.key not in {None, key}:
                raise Rejected(f"Launch {gang.launch} of {gang.run_id} was started under another key")
            agents = self._start_missing(launch, key, folder, record)
        data = {
            "run_dir": gang.run_dir,
            "launch": gang.launch,
            "boot_id": record.boot or boot_id(),
            "agents": [{"node": agent.node, "pid": agent.pid, "started": agent.started} for agent in agents],
        }
        return Handle(backend=self.name, version=_HANDLE_VERSION, data=data)

    def may_have_started(self, run_id: str, launch: int) -> bool:
        """By its record, which is begun before the first agent."""
        return read_record(self._home.run(run_id).launch(launch)).key is not None

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        with self._lock:
            self._reap()
        boot = boot_id()
        return {index: self._observe_one(handle, boot) for index, handle in enumerate(handles)}

    def cancel(self, handle: Handle) -> None:
        """Ask the agents to end their ranks; returns at once.

        What is left after `patience_s` is killed, sooner where only agents are left that are stopped and hear nothing.
        """
        if handle.data["boot_id"] != boot_id():
            return
        place = (handle.data["run_dir"], handle.data["launch"])
        with self._lock:
            running = self._ending.get(place)
            if running is not None and running.is_alive():
                return
            live = _live_agents(handle)
            if not live and not processes_of(_marks(handle)):
                return
            for agent in live:
                send_signal(agent.pid, agent.started, signal.SIGTERM)
            self._ending[place] = threading.Thread(
                target=self._end, args=(handle,), name="gangline-cancel", daemon=True
            )
            self._ending[place].start()

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:  # noqa: ARG002 - the server's folder is the run's
        return Cleared()

    def describe(self, handle: Handle) -> dict[str, str]:  # noqa: ARG002 - `show` says all there is
        return {}

    def _agent_command(self) -> tuple[str, ...]:
        with self._lock:
            if self._agent is None:
                from gangline.agent import bundle  # noqa: PLC0415 - only who starts agents pays for it

                self._agent = (sys.executable, "-I", "-S", os.fspath(bundle.build(self._home.path)))
            return self._agent

    def _start_missing(self, launch: Launch, key: str, folder: LaunchDir, record: LaunchRecord) -> list[AgentProcess]:
        if record.key is not None and record.boot != boot_id():
            return list(record.agents.values())  # the machine was started again since: nothing of the launch is left
        agents = dict(record.agents)
        folder.path.mkdir(parents=True, exist_ok=True)
        with JournalWriter(record_path(folder)) as journal:
            if record.key is None:
                journal.write("launch", key=key, boot=boot_id())
            for node in (node for node in range(launch.gang.nodes) if node not in agents):
                earlier = None if record.key is None else _find_agent(launch.gang, node)
                try:
                    agents[node] = earlier or self._spawn(launch, node, folder)
                except OSError as error:
                    _kill(list(agents.values()))
                    journal.write("abandoned", node=node, error=str(error))
                    raise _not_started(launch, node, error) from error
                journal.write("agent", node=node, pid=agents[node].pid, started=agents[node].started)
        return [agents[node] for node in sorted(agents)]

    def _spawn(self, launch: Launch, node: int, folder: LaunchDir) -> AgentProcess:
        log = os.open(folder.log(node), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                launch.commands[node],
                env=dict(launch.env),
                cwd=launch.gang.run_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._children.append(child.pid)
        child.returncode = 0  # it outlives this object on purpose; `_reap` waits for it by its pid
        return AgentProcess(node=node, pid=child.pid, started=start_of(child.pid) or "")

    def _reap(self) -> None:
        """Take note of agents that have ended, so that the system can forget them."""
        self._children = [pid for pid in self._children if not _has_ended(pid)]

    def _observe_one(self, handle: Handle, boot: str) -> Observation:
        if handle.data["boot_id"] != boot:
            return Observation(liveness=Liveness.GONE, detail="the machine was started again since")
        live = {agent.node for agent in _live_agents(handle)}
        lost = tuple(agent["node"] for agent in handle.data["agents"] if agent["node"] not in live)
        if live:
            return Observation(liveness=Liveness.ALIVE, lost_nodes=lost)
        left = processes_of(_marks(handle))
        if left:
            send(left, signal.SIGKILL)
            return Observation(
                liveness=Liveness.ALIVE, detail=f"the agents are gone, {len(left)} of their processes are ended"
            )
        return Observation(liveness=Liveness.GONE, detail="the agents have ended")

    def _end(self, handle: Handle) -> None:
        """See to it that nothing of a launch is left."""
        deadline = time.monotonic() + self._patience_s
        while (live := _live_agents(handle)) and time.monotonic() < deadline and not all(map(_is_stopped, live)):
            time.sleep(_PAUSE_S)
        _kill(live)
        while left := processes_of(_marks(handle)):
            send(left, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        with self._lock:
            self._reap()


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True  # somebody else waited for it


def _marks(handle: Handle) -> dict[str, str]:
    """The variables that every process below the agents of a launch was started with."""
    return {"GANGLINE_RUN_DIR": handle.data["run_dir"], "GANGLINE_LAUNCH": str(handle.data["launch"])}


def _live_agents(handle: Handle) -> list[AgentProcess]:
    """The agents of a launch that live: those of the handle, or whoever holds their place."""
    recorded = [AgentProcess(**raw) for raw in handle.data["agents"]]
    found = (agent if start_of(agent.pid) == agent.started else _holder(handle, agent) for agent in recorded)
    return [agent for agent in found if agent is not None]


def _is_stopped(agent: AgentProcess) -> bool:
    """Whether an agent, which its guardian has started, can hear nothing but SIGKILL."""
    below = find_descendants(agent.pid)
    return bool(below) and below[0].stopped


def _holder(handle: Handle, agent: AgentProcess) -> AgentProcess | None:
    """An agent that a killed server had started just before it could note it: its pid is in the lock file."""
    run_dir, launch = handle.data["run_dir"], handle.data["launch"]
    try:
        pid = int(RunDir(Path(run_dir)).launch(launch).lock(agent.node).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    started = start_of(pid)
    if (
        pid == agent.pid
        or started is None
        or not has_arguments(pid, render_agent_arguments(run_dir, launch, agent.node))
    ):
        return None
    return AgentProcess(node=agent.node, pid=pid, started=started)


def _find_agent(gang: GangSpec, node: int) -> AgentProcess | None:
    pid = find_by_arguments(render_agent_arguments(gang.run_dir, gang.launch, node))
    started = None if pid is None else start_of(pid)
    return None if pid is None or started is None else AgentProcess(node=node, pid=pid, started=started)


def _kill(agents: Sequence[AgentProcess]) -> None:
    """Kill agents, and what was below them when they were."""
    below = [process.pid for agent in agents for process in find_descendants(agent.pid)]
    started = {pid: start for pid in below if (start := start_of(pid)) is not None}
    for agent in agents:
        send_signal(agent.pid, agent.started, signal.SIGKILL)
    for pid, start in started.items():
        send_signal(pid, start, signal.SIGKILL)


def _not_started(launch: Launch, node: int, error: OSError) -> Rejected | Transient:
    what = f"The agent of node {node} of {launch.gang.run_id} could not be started"
    if isinstance(error, (FileNotFoundError, PermissionError, NotADirectoryError)):
        return Rejected(what, why=str(error))
    return Transient(what, why=str(error))
