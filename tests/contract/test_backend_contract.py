"""What every backend must do. Runs against the fake and the local one; further backends add a harness."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from tests.contract.fakeray import FakeRay

from gangline.backends.local.backend import LocalBackend
from gangline.backends.local.processes import start_of
from gangline.backends.local.record import record_path
from gangline.backends.ray.api import JobsApi
from gangline.backends.ray.backend import RayBackend
from gangline.backends.ray.watch import Watcher
from gangline.domain.errors import BackendError
from gangline.domain.gang import Capability, GangSpec, Handle, Liveness, Observation
from gangline.domain.pool import RayPool
from gangline.ports import Backend
from gangline.rundir.files import write_text
from gangline.rundir.home import Home
from gangline.rundir.layout import LaunchDir, RunDir
from gangline.testing import FakeBackend, FakeCluster, FakeElsewhere, make_capacity, make_gang

DEADLINE_S = 20.0
ENDING_S = 30.0
"""A process that has been ended may be seen for a moment."""
AGENT = '''
"""A stand-in for the agent: takes the lock of its node, starts one rank, ends it on SIGTERM."""
import fcntl, os, signal, subprocess, sys, time
run_dir, launch, node = sys.argv[2], int(sys.argv[4]), int(sys.argv[6])
lock = os.open(f"{run_dir}/launches/{launch:03d}/node-{node:03d}.lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(0)
os.ftruncate(lock, 0)
os.write(lock, str(os.getpid()).encode())
deaf = os.path.exists(f"{run_dir}/deaf")
marks = {"GANGLINE_RUN_DIR": run_dir, "GANGLINE_LAUNCH": str(launch), "GANGLINE_NODE": str(node)}
rank = subprocess.Popen(["sleep", "300"], env={**os.environ, **marks}, start_new_session=True)
def leave(*_):
    if not deaf:
        rank.kill(); rank.wait()
        sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("agent of node", node, "is up", sorted(os.environ), flush=True)
with open(f"{run_dir}/starts", "a") as starts:
    starts.write(f"{node}\\n")
while True:
    time.sleep(0.02)
    if os.path.exists(f"{run_dir}/end"):
        leave()
'''


class Harness(Protocol):
    """A backend, and the means to do to it what the world does."""

    backend: Backend

    def gang(self, *, nodes: int = 1, launch: int = 0) -> GangSpec: ...
    def end(self, handle: Handle) -> None: ...
    def lose_node(self, handle: Handle, node: int) -> None: ...
    def restart_server(self) -> None: ...
    def num_started(self, gang: GangSpec) -> int: ...


class FakeHarness:
    def __init__(self) -> None:
        self.backend = FakeBackend()

    def gang(self, *, nodes: int = 1, launch: int = 0) -> GangSpec:
        return make_gang(nodes=nodes, launch=launch)

    def end(self, handle: Handle) -> None:
        self.backend.kill(handle)

    def lose_node(self, handle: Handle, node: int) -> None:
        self.backend.lose_node(handle, node)

    def restart_server(self) -> None:
        pass

    def num_started(self, gang: GangSpec) -> int:
        return sum(len(held.launch.commands) for held in self.backend.launches.values() if held.launch.gang == gang)


class FarHarness(FakeHarness):
    """A fake that lies elsewhere; its ferry goes each time that somebody looks."""

    def __init__(self, folder: Path, *, queue: bool) -> None:
        super().__init__()
        self.home = Home(folder / "home").create()
        kind = _QuickCluster if queue else FakeElsewhere
        self.backend: FakeElsewhere = kind(folder / "far", self.home.path, capacity=make_capacity())

    def gang(self, *, nodes: int = 1, launch: int = 0) -> GangSpec:
        run = self.home.run("train-2abc")
        write_text(run.launch(launch).spec, "{}")
        return make_gang(nodes=nodes, launch=launch, run_dir=str(run.path))


class _QuickCluster(FakeCluster):
    """Gives a launch its machines as soon as somebody looks."""

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        for handle in handles:
            if handle.data["key"] in self.launches and self.find(handle).liveness is Liveness.PENDING:
                self.begin(handle)
        self.ferry()
        return super().observe(handles)


class LocalHarness:
    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home").create()
        script = folder / "standin.py"
        script.write_text(AGENT)
        self.command = (sys.executable, str(script))
        self.earlier: list[LocalBackend] = []
        self.backend = self.new_backend()

    def new_backend(self) -> LocalBackend:
        return LocalBackend(self.home, capacity=make_capacity(), agent=self.command, patience_s=1.0)

    def gang(self, *, nodes: int = 1, launch: int = 0) -> GangSpec:
        run = self.home.run("train-2abc")
        run.path.mkdir(exist_ok=True)
        return make_gang(nodes=nodes, launch=launch, run_dir=str(run.path))

    def end(self, handle: Handle) -> None:
        Path(handle.data["run_dir"], "end").touch()

    def lose_node(self, handle: Handle, node: int) -> None:
        """Kill an agent, and wait until it has ended: the system may take its time."""
        pid = agent_pid(handle, node)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: start_of(pid) is None)

    def restart_server(self) -> None:
        self.earlier.append(self.backend)
        self.backend = self.new_backend()

    def num_started(self, gang: GangSpec) -> int:
        """Agents that took their place (more may have been started and left at once)."""
        wait_for(lambda: len(self.starts(gang)) >= gang.nodes)
        return len(self.starts(gang))

    def starts(self, gang: GangSpec) -> list[str]:
        path = Path(gang.run_dir, "starts")
        return path.read_text().split() if path.exists() else []


class RayHarness(LocalHarness):
    """The Jobs API is this process's own; jobs are real processes."""

    backend: RayBackend

    def __init__(self, folder: Path) -> None:
        self.ray: FakeRay | None = None
        super().__init__(folder)

    def new_backend(self) -> RayBackend:
        self.ray = self.ray or FakeRay(self.command)
        pool = RayPool(name="warm", address="http://head:8265")
        api = JobsApi(pool, transport=self.ray)
        return RayBackend(self.home, pool, api, _LooksWhenAsked(api, poll_s=1.0))

    def lose_node(self, handle: Handle, node: int) -> None:
        self.ray.kill_agent(handle.data["submission_id"], node)


class _LooksWhenAsked(Watcher):
    """Has no thread."""

    def newest(self):
        return self.look()


def agent_pid(handle: Handle, node: int) -> int:
    return next(agent["pid"] for agent in handle.data["agents"] if agent["node"] == node)


def launch_dir(gang: GangSpec) -> LaunchDir:
    return RunDir(Path(gang.run_dir)).launch(gang.launch)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


def of_folder(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(folder) in text for text in texts):
            found.append(process)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    yield from without_rest(LocalHarness(tmp_path), tmp_path)


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[RayHarness]:
    yield from without_rest(RayHarness(tmp_path), tmp_path)


def without_rest(harness: LocalHarness, tmp_path: Path) -> Iterator[LocalHarness]:
    yield harness
    _, left = psutil.wait_procs(of_folder(tmp_path), timeout=ENDING_S)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=DEADLINE_S)
    for backend in [harness.backend, *harness.earlier]:
        backend.observe([])  # takes note of the ends
    assert left == [], "the test left processes behind"


@pytest.fixture(params=["fake", "elsewhere", "queue", "local", "ray"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    if request.param in {"local", "ray"}:
        return request.getfixturevalue(request.param)
    if request.param == "fake":
        return FakeHarness()
    return FarHarness(tmp_path, queue=request.param == "queue")


def start(harness: Harness, *, nodes: int = 1, key: str = "k") -> Handle:
    return harness.backend.submit(harness.backend.render(harness.gang(nodes=nodes)), key=key)


def test_what_was_never_submitted_has_no_agents(harness: Harness) -> None:
    gang = harness.gang()
    assert not harness.backend.may_have_started(gang.run_id, gang.launch)
    handle = start(harness)
    harness.restart_server()
    assert harness.backend.may_have_started(gang.run_id, gang.launch)
    assert not harness.backend.may_have_started(gang.run_id, gang.launch + 1)
    cancel_and_wait(harness, handle)


def liveness(harness: Harness, handle: Handle) -> Liveness:
    if isinstance(harness, FarHarness):
        harness.backend.ferry()
    return harness.backend.observe([handle])[0].liveness


def cancel_and_wait(harness: Harness, handle: Handle) -> None:
    harness.backend.cancel(handle)
    wait_for(lambda: liveness(harness, handle) is Liveness.GONE)


def test_is_a_backend(harness: Harness) -> None:
    assert isinstance(harness.backend, Backend)
    assert harness.backend.name
    assert harness.backend.capacity().ranks > 0


def test_render_is_pure_and_has_one_command_for_each_node(harness: Harness) -> None:
    gang = harness.gang(nodes=3)
    assert harness.backend.render(gang) == harness.backend.render(gang)
    launch = harness.backend.render(gang)
    assert launch.backend == harness.backend.name
    assert len(set(launch.commands)) == 3
    assert launch.gang == gang


def test_a_launch_lives_until_it_ends(harness: Harness) -> None:
    handle = start(harness, nodes=2)
    assert liveness(harness, handle) is Liveness.ALIVE
    harness.num_started(harness.gang(nodes=2))
    harness.end(handle)
    wait_for(lambda: liveness(harness, handle) is Liveness.GONE)


def test_a_handle_survives_json(harness: Harness) -> None:
    handle = start(harness)
    again = Handle.from_dict(handle.to_dict())
    assert liveness(harness, again) is Liveness.ALIVE
    cancel_and_wait(harness, again)


def test_twice_with_one_key_is_one_launch(harness: Harness) -> None:
    first, second = start(harness, nodes=2), start(harness, nodes=2)
    assert first == second
    assert harness.num_started(harness.gang(nodes=2)) == 2
    cancel_and_wait(harness, first)
    assert start(harness, nodes=2) == first, "a key that was used starts nothing, also when its launch is over"
    assert liveness(harness, first) is Liveness.GONE


def test_two_keys_are_two_launches(harness: Harness) -> None:
    first = start(harness, key="a")
    second = harness.backend.submit(harness.backend.render(harness.gang(launch=1)), key="b")
    harness.num_started(harness.gang())
    cancel_and_wait(harness, first)
    assert liveness(harness, second) is Liveness.ALIVE
    cancel_and_wait(harness, second)


def test_a_new_server_knows_the_launch(harness: Harness) -> None:
    handle = start(harness, nodes=2)
    harness.restart_server()
    assert liveness(harness, handle) is Liveness.ALIVE
    assert start(harness, nodes=2) == handle
    cancel_and_wait(harness, handle)


def test_a_lost_node_is_named(harness: Harness) -> None:
    handle = start(harness, nodes=3)
    harness.num_started(harness.gang(nodes=3))
    harness.lose_node(handle, 1)
    wait_for(lambda: harness.backend.observe([handle])[0].lost_nodes)
    seen = harness.backend.observe([handle])[0]
    assert (seen.liveness, tuple(seen.lost_nodes)) == (Liveness.ALIVE, (1,))
    cancel_and_wait(harness, handle)


def test_cancel_is_idempotent(harness: Harness) -> None:
    handle = start(harness)
    cancel_and_wait(harness, handle)
    harness.backend.cancel(handle)
    assert liveness(harness, handle) is Liveness.GONE


def test_one_call_observes_many(harness: Harness) -> None:
    first = start(harness, key="a")
    second = harness.backend.submit(harness.backend.render(harness.gang(launch=1)), key="b")
    seen = harness.backend.observe([second, first])
    assert sorted(seen) == [0, 1]
    assert harness.backend.observe([]) == {}
    cancel_and_wait(harness, first)
    cancel_and_wait(harness, second)


def test_the_places_of_agents_are_the_server_s_own_only_where_files_are_shared(harness: Harness) -> None:
    places = harness.backend.places("train-2abc")
    assert Path(places.run_dir).is_absolute()
    if isinstance(harness, LocalHarness | FarHarness):
        own = str(harness.home.run("train-2abc").path)
        assert (places.run_dir == own) == (Capability.SHARED_FILES in harness.backend.capabilities)


# What is peculiar to backends that lie elsewhere.


@pytest.fixture
def far(tmp_path: Path) -> FarHarness:
    return FarHarness(tmp_path, queue=False)


def test_gone_is_said_once_the_mirror_has_everything(far: FarHarness) -> None:
    handle = start(far)
    run = far.backend.far("train-2abc")
    write_text(run.attempt(0).result, "{}")
    far.end(handle)
    seen = far.backend.observe([handle])[0]
    assert (seen.liveness, seen.mirrored) == (Liveness.ALIVE, None)
    far.backend.ferry()
    seen = far.backend.observe([handle])[0]
    assert seen.liveness is Liveness.GONE
    assert seen.mirrored is not None
    assert far.home.run("train-2abc").attempt(0).result.exists()


def test_a_launch_that_waits_says_why(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    cluster = FakeCluster(tmp_path / "far", home.path)
    handle = cluster.submit(cluster.render(make_gang()), key="k")
    cluster.pend(handle, "Resources")
    seen = cluster.observe([handle])[0]
    assert (seen.liveness, seen.detail) == (Liveness.PENDING, "Resources")
    cluster.cancel(handle)
    cluster.ferry()
    assert cluster.observe([handle])[0].liveness is Liveness.GONE


# What is peculiar to the local backend.


def test_cancel_returns_at_once_and_kills_what_does_not_listen(local: LocalHarness, tmp_path: Path) -> None:
    gang = local.gang(nodes=2)
    Path(gang.run_dir, "deaf").touch()
    handle = start(local, nodes=2)
    local.num_started(gang)
    local.backend.cancel(handle)
    assert liveness(local, handle) is Liveness.ALIVE  # it has returned, and nobody has listened yet
    wait_for(lambda: liveness(local, handle) is Liveness.GONE)
    assert of_folder(tmp_path) == []


def test_cancel_ends_agents_that_are_stopped(local: LocalHarness, tmp_path: Path) -> None:
    handle = start(local)
    local.num_started(local.gang())
    os.kill(agent_pid(handle, 0), signal.SIGSTOP)
    cancel_and_wait(local, handle)
    assert of_folder(tmp_path) == []


def test_ranks_of_killed_agents_are_ended_before_the_launch_counts_as_gone(local: LocalHarness, tmp_path: Path) -> None:
    handle = start(local, nodes=2)
    local.num_started(local.gang(nodes=2))
    for node in (0, 1):
        local.lose_node(handle, node)
    wait_for(lambda: liveness(local, handle) is Liveness.GONE)
    assert of_folder(tmp_path) == []


def test_no_zombie_stays(local: LocalHarness) -> None:
    handle = start(local, nodes=2)
    local.num_started(local.gang(nodes=2))
    local.end(handle)
    wait_for(lambda: liveness(local, handle) is Liveness.GONE)
    local.backend.observe([])
    pids = {agent["pid"] for agent in handle.data["agents"]}
    assert pids.isdisjoint(child.pid for child in psutil.Process().children())


def test_a_server_killed_between_two_agents_starts_the_second_alone(local: LocalHarness) -> None:
    gang = local.gang(nodes=2)
    handle = start(local, nodes=2)
    local.num_started(gang)
    local.lose_node(handle, 1)
    record = record_path(launch_dir(gang))
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:2]))
    local.restart_server()
    again = start(local, nodes=2)
    assert agent_pid(again, 0) == agent_pid(handle, 0)
    assert agent_pid(again, 1) != agent_pid(handle, 1)
    wait_for(lambda: sorted(local.starts(gang)) == ["0", "1", "1"])
    cancel_and_wait(local, again)


def test_a_server_killed_before_it_noted_an_agent_finds_it(local: LocalHarness) -> None:
    gang = local.gang(nodes=2)
    handle = start(local, nodes=2)
    local.num_started(gang)
    record = record_path(launch_dir(gang))
    record.write_text(record.read_text().splitlines(keepends=True)[0])
    local.restart_server()
    assert start(local, nodes=2) == handle
    cancel_and_wait(local, handle)
    assert sorted(local.starts(gang)) == ["0", "1"]


def test_an_agent_that_holds_the_place_of_a_noted_one_counts(local: LocalHarness) -> None:
    gang = local.gang()
    handle = start(local)
    local.num_started(gang)
    noted = {**handle.data, "agents": [{"node": 0, "pid": 2**22 - 3, "started": "0"}]}
    stale = Handle(backend="local", version=1, data=noted)
    assert liveness(local, stale) is Liveness.ALIVE
    cancel_and_wait(local, stale)
    wait_for(lambda: liveness(local, handle) is Liveness.GONE)


def test_a_recycled_pid_is_not_an_agent(local: LocalHarness) -> None:
    handle = start(local)
    local.num_started(local.gang())
    raw = {**handle.data["agents"][0], "pid": os.getpid()}
    other = Handle(backend="local", version=1, data={**handle.data, "run_dir": "/nowhere", "agents": [raw]})
    assert liveness(local, other) is Liveness.GONE
    local.backend.cancel(other)
    cancel_and_wait(local, handle)


def test_a_handle_of_an_earlier_boot_is_gone(local: LocalHarness) -> None:
    handle = start(local)
    local.num_started(local.gang())
    earlier = Handle(backend="local", version=1, data={**handle.data, "boot_id": "another"})
    assert liveness(local, earlier) is Liveness.GONE
    local.backend.cancel(earlier)
    assert liveness(local, handle) is Liveness.ALIVE
    cancel_and_wait(local, handle)


def test_agents_get_a_small_environment(local: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    handle = start(local)
    local.num_started(local.gang())
    log = launch_dir(local.gang()).log(0)
    wait_for(lambda: "is up" in log.read_text())
    assert "SLURM_PROCID" not in log.read_text()
    assert "'LC_ALL'" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    cancel_and_wait(local, handle)


def test_a_gang_that_cannot_start_whole_does_not_start(local: LocalHarness, tmp_path: Path) -> None:
    launch = local.backend.render(local.gang(nodes=2))
    broken = type(launch)(
        backend="local", commands=(launch.commands[0], ("/no/such/python",)), env=launch.env, gang=launch.gang
    )
    with pytest.raises(BackendError, match="node 1"):
        local.backend.submit(broken, key="k")
    wait_for(lambda: of_folder(tmp_path) == [])
    handle = local.backend.submit(launch, key="k")
    assert liveness(local, handle) is Liveness.ALIVE
    local.num_started(launch.gang)
    cancel_and_wait(local, handle)


def test_a_launch_folder_belongs_to_one_key(local: LocalHarness) -> None:
    handle = start(local, key="a")
    local.num_started(local.gang())
    with pytest.raises(BackendError, match="another key"):
        start(local, key="b")
    cancel_and_wait(local, handle)
