"""A command line without a server: `gangline(...)` runs a command against a client that remembers what it was asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline.cli import connection
from gangline.cli.main import main
from gangline.domain.errors import NotFound, ServerUnreachable, StillEnding

NOW = 1_700_000_000.0


def make_failure(**changes: Any) -> dict[str, Any]:
    made = {
        "rank": 2,
        "node": 1,
        "host": "gpu-7",
        "pid": 4711,
        "exit_code": 1,
        "signal": None,
        "signal_name": None,
        "time": NOW - 40,
        "error_type": "ValueError",
        "error_in_log": False,
        "error_message": "loss is not finite",
        "traceback": 'Traceback (most recent call last):\n  File "train.py", line 7\nValueError: loss is not finite',
        "causes": [],
        "log_tail": "step 119\nstep 120\n",
        "step": 120,
        "total_steps": 200,
        "phase": None,
    }
    return {**made, **changes}


def make_attempt(number: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "number": number,
        "launch": 0,
        "outcome": "succeeded",
        "reason": None,
        "message": "",
        "started": NOW - 60,
        "running": NOW - 59,
        "ended": NOW - 40,
        "resume": None,
        "resume_step": None,
        "start_mode": "warm",
        "first_failure": None,
        "signature": None,
        "hint": "",
        "next": None,
        "restart_message": "",
        "ranks": [make_rank(rank) for rank in range(4)],
        "nodes": [make_node(0), make_node(1)],
    }
    return {**made, **changes}


def make_rank(rank: int, **changes: Any) -> dict[str, Any]:
    made = {
        "rank": rank,
        "node": rank // 2,
        "pid": 100 + rank,
        "exit_code": None,
        "signal": None,
        "ended_by": None,
        "started": NOW - 59,
        "ended": None,
        "peak_rss_bytes": None,
        "step": None,
        "phase": None,
        "place": None,
        "error": None,
    }
    return {**made, **changes}


def make_node(node: int) -> dict[str, Any]:
    environment = {"python": "3.11.2", "packages": {"torch": "2.13.0", "numpy": "2.1.0"}}
    told = {"host": f"gpu-{6 + node}", "address": "", "agent_pid": 1, "devices": [], "machines": [], "tasks": None}
    return {"node": node, **told, "environment": environment}


def make_checkpoint(step: int, **changes: Any) -> dict[str, Any]:
    made = {
        "step": step,
        "attempt": 0,
        "path": f"/runs/x/checkpoints/step-{step:010d}.attempt-000",
        "size_bytes": 1_234_567,
        "num_files": 2,
        "time": NOW - 50,
        "duration_s": 0.25,
        "state": "complete",
        "why": "",
        "latest": False,
    }
    return {**made, **changes}


def make_code(**changes: Any) -> dict[str, Any]:
    made = {
        "digest": "ab" * 32,
        "workdir": ".",
        "root": "/home/ada/project",
        "num_files": 12,
        "size_bytes": 34_567,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "branch": "main",
        "remote": None,
        "dirty": True,
        "diff": "diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n",
        "untracked": ["notes.txt"],
        "excluded": [{"path": "data/", "rule": ".gitignore:3 data/", "num_files": 3, "size_bytes": 5_000_000}],
    }
    return {**made, **changes}


def make_run(**changes: Any) -> dict[str, Any]:
    made = {
        "id": "llama-7k3q",
        "name": "llama",
        "project": "default",
        "user": "ada",
        "pool": "local",
        "phase": "running",
        "reason": None,
        "message": "",
        "nodes": 2,
        "procs_per_node": 2,
        "gpus_per_node": 0,
        "attempt": 0,
        "attempt_nodes": 2,
        "restarts": 0,
        "exit_code": None,
        "created": NOW - 62,
        "started": NOW - 60,
        "ended": None,
        "step": 120,
        "total_steps": 200,
        "labels": {},
        "version": 3,
        "rerun_of": None,
        "debug_of": None,
        "revision": 0,
        "spec": {"entry": "train.py", "entry_kind": "script", "args": ["--lr", "3e-4"], "strategy": "ddp"},
        "run_dir": "/home/ada/.gangline/runs/llama-7k3q",
        "attempts": [],
        "checkpoints": [],
        "code": None,
        "events": [],
        "metrics": {},
        "tokens_per_s": None,
        "client": {},
        "backend": {},
        "room": [],
        "job_log": "",
    }
    whole = {**made, **changes}
    started, ended = whole["started"], whole["ended"]
    return {"duration_s": None if started is None else (ended or NOW) - started, **whole}


def make_metric(values: Sequence[float | None], name: str = "loss") -> dict[str, Any]:
    buckets = [
        {"step": step, "last_step": step, "count": 1, "min": value, "max": value, "mean": value}
        for step, value in enumerate(values)
    ]
    return {"name": name, "rank": 0, "count": len(values), "buckets": buckets}


def make_chunk(text: str, **changes: Any) -> dict[str, Any]:
    size = len(text.encode())
    made = {"rank": 0, "attempt": 0, "offset": 0, "next_offset": size, "size": size, "text": text, "complete": True}
    return {**made, **changes}


@dataclass
class FakeClient:
    """Answers from memory; `calls` has what it was asked."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)
    hits: list[dict[str, Any]] = field(default_factory=list)
    stream: list[Any] = field(default_factory=list)
    """What `follow` yields; an exception is raised in its place."""
    series: dict[str, dict[str, Any]] = field(default_factory=dict)
    later: list[dict[str, Any]] = field(default_factory=list)
    """What the next waits answer."""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    submitted: dict[str, Any] = field(default_factory=lambda: make_run(phase="queued"))
    """What `submit` answers."""
    is_ending: bool = False
    """Runs take longer to end than a patient caller waits."""
    machines: list[dict[str, Any]] = field(default_factory=list)
    more_pools: list[dict[str, Any]] = field(default_factory=list)
    pools_fault: str = ""
    login: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """What `nodes` answers."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """What `system` answers."""
    compared: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    def submit(
        self, spec: dict[str, Any], *, client: dict[str, Any], key: str, lease_s: float | None = None
    ) -> dict[str, Any]:
        assert lease_s is None
        self.calls.append(("submit", {"spec": spec, "client": client, "key": key}))
        return self.submitted

    def check(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("check", spec))
        commands = [["python", "an agent", "--node", "0"]]
        return {"backend": "local", "commands": commands, "env": {"A": "1 2"}, "files": {"launch.json": "{}"}}

    def missing_objects(self, digests: list[str]) -> list[str]:
        return [digest for digest in digests if digest not in self.objects]

    def put_objects(self, contents: dict[str, bytes]) -> int:
        self.objects.update(contents)
        return len(contents)

    def put_snapshot(self, manifest: dict[str, Any]) -> str:
        self.calls.append(("put_snapshot", manifest))
        return str(manifest["digest"])

    def snapshot(self, _digest: str) -> dict[str, Any]:
        return self.manifest

    def object(self, digest: str) -> Iterator[bytes]:
        yield self.objects[digest]

    def run(self, run: str) -> dict[str, Any]:
        if run not in self.runs:
            raise NotFound(f"There is no run `{run}`", fix="`gangline ps` lists runs.")
        return self.runs[run]

    def list_runs(self, **query: Any) -> list[dict[str, Any]]:
        self.calls.append(("list_runs", query))
        phases, limit = query["phases"], query["limit"]
        found = [run for run in self.runs.values() if not phases or run["phase"] in phases]
        return found if limit is None else found[:limit]

    def wait(self, run: str, **options: Any) -> dict[str, Any]:
        self.calls.append(("wait", options))
        if self.later:
            self.runs[run] = self.later.pop(0)
        return self.run(run)

    def stop(self, run: str, *, grace_s: float | None) -> dict[str, Any]:
        self.calls.append(("stop", (run, grace_s)))
        return {**self.run(run), "phase": "stopping"}

    def measure(self, run: str) -> dict[str, Any]:
        sizes = {"size_bytes": 3 * 10**9, "checkpoints_bytes": 10**9, "num_checkpoints": 2}
        return {"id": self.run(run)["id"], **sizes, "checkpoint_path": None}

    def remove(self, run_id: str, *, keep_checkpoints: bool, patience_s: float) -> dict[str, Any]:
        assert patience_s > 0
        self.calls.append(("remove", (run_id, keep_checkpoints)))
        del self.runs[run_id]
        kept = f"/home/ada/.gangline/kept/{run_id}" if keep_checkpoints else None
        return {"id": run_id, "freed_bytes": 3 * 10**9, "kept": kept, "left": []}

    def free_objects(self) -> dict[str, int]:
        self.calls.append(("free_objects", None))
        return {"num_objects": 7, "num_snapshots": 1, "freed_bytes": 5_000_000}

    def resume(
        self, run: str, *, checkpoint: str | None = None, changes: Any = None, patience_s: float = math.inf
    ) -> dict[str, Any]:
        if self.is_ending and patience_s < math.inf:
            raise StillEnding(f"Run `{run}` is still ending")
        self.calls.append(("resume", (run, checkpoint, changes or {})))
        return {**self.run(run), "phase": "queued"}

    def rerun(self, run: str, *, changes: Any, args: Any, client: Any, key: str) -> dict[str, Any]:
        assert client["folder"]
        assert key
        self.calls.append(("rerun", (self.run(run)["id"], changes, None if args is None else list(args))))
        return self.submitted

    def debug(self, run: str, *, client: Any, key: str, **options: Any) -> dict[str, Any]:
        assert client["folder"]
        assert key
        self.calls.append(("debug", (self.run(run)["id"], options)))
        return self.submitted

    def compare(self, runs: Sequence[str], *, code: bool) -> dict[str, Any]:
        self.calls.append(("compare", (tuple(runs), code)))
        return self.compared

    def report(self, run: str, *, form: str) -> tuple[bytes, int]:
        self.calls.append(("report", (run, form)))
        return b"<!doctype html>", 3

    def compare_ranks(self, run: str, *, attempt: int | None) -> dict[str, Any]:
        self.calls.append(("compare_ranks", (run, attempt)))
        return self.workers

    def checkpoints(self, run: str) -> list[dict[str, Any]]:
        return self.run(run)["checkpoints"]

    def metrics(self, run: str) -> dict[str, float | None]:
        return self.run(run)["metrics"]

    def metric(self, run: str, name: str, *, rank: int = 0, buckets: int = 200) -> dict[str, Any]:
        self.calls.append(("metric", (run, name, rank, buckets)))
        if name not in self.series:
            raise NotFound(f"Run `{run}` has no metric `{name}`")
        return self.series[name]

    def log_chunk(self, run: str, rank: int, **query: Any) -> dict[str, Any]:
        self.calls.append(("log_chunk", (run, rank, query)))
        return make_chunk(self.logs.get(rank, ""), rank=rank)

    def log_chunks(self, run: str, **query: Any) -> Iterator[dict[str, Any]]:
        self.calls.append(("log_chunks", (run, query)))
        ranks = sorted(self.logs) if query["ranks"] is None else query["ranks"]
        return iter([make_chunk(self.logs[rank], rank=rank) for rank in ranks if rank in self.logs])

    def search(self, run: str, pattern: str, **query: Any) -> Iterator[dict[str, Any]]:
        self.calls.append(("search", (run, pattern, query)))
        return iter(self.hits)

    def raw_log(self, run: str, rank: int, *, attempt: int | None = None, **span: Any) -> Iterator[bytes]:
        self.calls.append(("raw_log", (run, rank, attempt, span)))
        yield self.logs[rank].encode("utf-8", "surrogateescape")

    def follow(self, run: str, **query: Any) -> Iterator[dict[str, Any]]:
        self.calls.append(("follow", (run, query)))
        for item in self.stream:
            if isinstance(item, BaseException):
                raise item
            yield item

    def system(self, run: str, **query: Any) -> list[dict[str, Any]]:
        self.calls.append(("system", (run, query)))
        return self.samples

    def pools(self) -> list[dict[str, Any]]:
        made = {"name": "local", "backend": "local", "nodes": 8, "ranks": 64, "cpus": 2, "memory_bytes": 8_000_000_000}
        free = {"devices": [], "device_kind": "", "free_devices": [], "free_cpus": 2, "running": 1, "queued": 0}
        state = {"state": "ready", "state_text": "", "command": "", "since": None, "jobs": 0, "parts": []}
        local = {**made, **free, **state, "avoided_nodes": 0, "warnings": []}
        return [local, *({**local, **pool} for pool in self.more_pools)]

    def pool_file(self) -> dict[str, Any]:
        return {"path": "/home/pools.yaml", "fault": self.pools_fault}

    def pool(self, name: str) -> dict[str, Any]:
        found = {"settings": {"backend": "slurm", "work": "/w"}, "file": "/home/pools.yaml", "login": self.login}
        return {**self.pools()[0], "name": name, "backend": "slurm", **found}

    def add_pool(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("add_pool", (name, settings)))
        return self.pool(name)

    def remove_pool(self, name: str) -> dict[str, Any]:
        self.calls.append(("remove_pool", name))
        return self.pool_file()

    def examine_pool(self, name: str, *, deep: bool = False) -> list[dict[str, Any]]:
        self.calls.append(("examine_pool", (name, deep)))
        return self.findings

    def pool_jobs(self, name: str, *, quiet_s: float = 1800.0) -> list[dict[str, Any]]:
        self.calls.append(("pool_jobs", (name, quiet_s)))
        return self.jobs

    def end_zombies(self, name: str) -> list[dict[str, Any]]:
        self.calls.append(("end_zombies", name))
        return [{**job, "ended": job["standing"] in {"orphan", "idle"}, "fix": ""} for job in self.jobs]

    def nodes(self, pool: str | None = None) -> list[dict[str, Any]]:
        self.calls.append(("nodes", pool))
        return self.machines

    def clear_node(self, node: str, *, pool: str | None = None) -> dict[str, Any]:
        self.calls.append(("clear_node", (node, pool)))
        return {"host": node, "pools": ["local"] if node == "h1" else []}

    def health(self) -> dict[str, Any]:
        made = {"version": "0.1.0", "pid": 99, "started": NOW - 5, "home": "/home/ada/.gangline"}
        return {**made, "runs_live": 1, "runs_queued": 0, "rss_bytes": 50_000_000, "warnings": []}

    def stop_server(self) -> None:
        self.calls.append(("stop_server", None))


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client that every command gets."""
    made = FakeClient()
    monkeypatch.setattr(connection, "connect", lambda **_: made)
    return made


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers."""

    def refuse(**_: object) -> FakeClient:
        raise ServerUnreachable("No server runs")

    monkeypatch.setattr(connection, "connect", refuse)


@pytest.fixture
def gangline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command in this process; the terminal is a pipe unless `env` says how wide it is."""

    def run(*args: str, env: Mapping[str, str] | None = None) -> Result:
        for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"NO_COLOR": "1", "TERM": "xterm", **(env or {})}.items():
            monkeypatch.setenv(name, value)
        code = main(list(args))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def make() -> Any:
    """The builders above, for tests in other files."""

    class Make:
        now = NOW
        run = staticmethod(make_run)
        attempt = staticmethod(make_attempt)
        rank = staticmethod(make_rank)
        node = staticmethod(make_node)
        failure = staticmethod(make_failure)
        checkpoint = staticmethod(make_checkpoint)
        code = staticmethod(make_code)
        metric = staticmethod(make_metric)
        chunk = staticmethod(make_chunk)

    return Make
