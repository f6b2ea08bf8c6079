"""A transient Ray cluster for one run: the head stands beside rank 0, which is the driver; every other rank is a node.

Nothing of Ray is imported here: the interpreter of the run starts what its own version of Ray brings. All ports are the
cluster's own, and its sockets lie in a folder of its own: several nodes and several clusters fit on one machine.
Whoever talks to it has to know the token of the attempt. Standard library only.

Source: docs/adr/0038-transient-ray.md.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.agent.inject import bundle_root
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.starter import RankStart
from gangline.agent.strategies.company import Child, Company, CompanyFault, hold_scratch, scratch_path, take_scratch
from gangline.agent.strategies.rules import Rules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms
    from gangline.agent.site import Site

__all__ = ["RULES", "RayRules", "decide_store_bytes", "render_node"]

_PORTS = (
    *("node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"),
    *("runtime-env-agent-port", "metrics-export-port"),
)
"""Of each node; the kernel chooses those of its workers."""
_HEAD_PORTS = ("port", "dashboard-port")
_START = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"
"""Program that is the command `ray` of an interpreter, whatever lies on the path."""
_STARTED = "Ray runtime started"
"""What `ray start` says once its node is one of the cluster."""
_MISSING = "No module named 'ray"
_OWN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("NNODES", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_ADDRESS"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
    }
)
"""What is said of the driver alone; workers of Ray are told by Ray who they are."""
_DASHBOARD = "RAY_INCLUDE_DASHBOARD"
"""Variable of a run; `0`: its cluster has none."""
_PATIENCE = "RAY_raylet_start_wait_time_s"
_PATIENCE_S = "120"
"""How long a node may take to be one of the cluster. Ray's own 30 s are few where several begin on a busy machine."""
_SOCKETS = ("raylet", "plasma_store")
"""Of each node in its cluster's folder, with a number behind: Ray takes the first that is not there."""
_CALLBACK = "gangline.ray.TrainReports"
_MEMORY_SHARE = 0.3
_STORE_SHARE = 0.8
_LEAST_STORE_BYTES = 80 << 20
_LOGS_BYTES = 32 << 20
"""Of Ray's own logs, what is kept after a failure."""


class RayRules(Rules):
    """See the module."""

    def num_ports(self, launch: LaunchSpec) -> int:  # noqa: ARG002
        return len(_PORTS) + len(_HEAD_PORTS)

    def supports(self, rank: int) -> bool:
        return rank > 0

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:  # noqa: ARG002
        """The driver is one process: nothing in it must wait for the other ranks as its peers. Its nodes are many."""
        told = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
        told |= dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
        callbacks = [launch.env["RAY_TRAIN_CALLBACKS"]] if launch.env.get("RAY_TRAIN_CALLBACKS") else []
        told |= {
            "NNODES": str(len(terms.shape.nodes)),
            _PATIENCE: launch.env.get(_PATIENCE, _PATIENCE_S),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _token(launch, terms),
            "RAY_TRAIN_CALLBACKS": ",".join([*callbacks, _CALLBACK]),
            "PYTHONPATH": os.pathsep.join([*filter(None, [launch.env.get("PYTHONPATH")]), bundle_root()]),
        }
        if terms.cluster:
            told["RAY_ADDRESS"] = f"{terms.addresses[0]}:{_ports(terms, 0)['port']}"
        return told

    def company(self, site: Site, terms: AttemptTerms) -> Company:
        return RayHead(site, terms) if site.index == terms.shape.nodes[0] else RayNode(site, terms)

    def program(self, start: RankStart, site: Site, terms: AttemptTerms) -> RankStart:
        if start.rank == 0:
            return start
        args = ("-c", _START, *render_node(site, terms))
        return replace(start, entry_kind="command", entry=start.python, args=args, env=_node_environment(start.env))


class RayNode(Company):
    """Beside a rank that is a node of the cluster stands nobody; but its sockets lie in a folder that has to go.

    Nodes on one machine begin one after another, each when the one before has its sockets: two that begin at once take
    the same names, and one of them dies.
    """

    def __init__(self, site: Site, terms: AttemptTerms) -> None:
        super().__init__()
        self._site, self._terms = site, terms
        self._scratch = scratch_path(site.run, site.launch.launch)
        place = terms.shape.nodes.index(site.index)
        self._before = terms.addresses[:place].count(terms.addresses[place])
        self.ready = self._is_next()

    def begin(self) -> None:
        hold_scratch(self._scratch)

    def look(self) -> None:
        self.ready = self.ready or self._is_next()

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _is_next(self) -> bool:
        sockets = self._scratch / "session_latest" / "sockets"
        return all(len([*sockets.glob(f"{name}*")]) >= self._before for name in _SOCKETS)


class RayHead(RayNode):
    """The head of the cluster; ready when all other nodes have found it."""

    def __init__(self, site: Site, terms: AttemptTerms) -> None:
        super().__init__(site, terms)
        self.ready = False
        self._attempt = site.run.attempt(terms.attempt)
        self._child: Child | None = None
        self._waiting = set(range(1, terms.shape.world_size))

    def begin(self) -> None:
        take_scratch(self._scratch)
        env = _node_environment(self._site.environment_of(0, self._terms))
        log = self._attempt.node(self._site.index) / "ray.log"
        argv = [self._site.launch.python, "-c", _START, *render_node(self._site, self._terms)]
        self._child = Child(argv, env=env, cwd=str(self._site.workdir), log=log)

    def look(self) -> None:
        assert self._child is not None  # noqa: S101 - `begin` was called
        if ended := self._child.ended():
            if _MISSING in self._child.text():
                raise CompanyFault(
                    f"{self._site.launch.python} has no Ray: install `ray[default]` there (and `ray[train]` to train)",
                    missing=True,
                )
            said = self._child.last_words()
            raise CompanyFault(f"the head of the Ray cluster has ended ({ended}){': ' if said else ''}{said}")
        if not self.ready:
            self._waiting = {rank for rank in self._waiting if not _has_started(self._attempt.log(rank))}
            self.ready = not self._waiting and _has_started(self._child.log)
            if self.ready and _has_dashboard(self._site.launch):
                self.notes.append(("dashboard", self._where()))

    def roots(self) -> frozenset[int]:
        return frozenset() if self._child is None else frozenset({self._child.pid})

    def close(self) -> None:
        with suppress(OSError):
            _keep_logs(self._scratch / "session_latest" / "logs", self._attempt.node(self._site.index) / "ray-logs")
        super().close()

    def _where(self) -> str:
        """The token is where only the owner of the run reads it."""
        path = self._attempt.node(self._site.index) / "ray.token"
        path.touch(mode=0o600)
        path.write_text(_token(self._site.launch, self._terms) + "\n", encoding="ascii")
        url = f"http://127.0.0.1:{_ports(self._terms, 0)['dashboard-port']}"
        return f"The Ray dashboard is at {url} on {self._site.host}; it asks for the token in {path}."


def render_node(site: Site, terms: AttemptTerms) -> list[str]:
    """The arguments of `ray` that start this node of the cluster, and keep it in the foreground."""
    place = terms.shape.nodes.index(site.index)
    own, launch = _ports(terms, place), site.launch
    share = max(1, terms.addresses.count(terms.addresses[place]))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    words = ["start", "--block", "--disable-usage-stats", f"--node-ip-address={terms.addresses[place]}"]
    if place == 0:
        scratch = scratch_path(site.run, site.launch.launch)
        words += ["--head", "--dashboard-host=127.0.0.1", f"--temp-dir={scratch}"]
        words += [f"--{name}={own[name]}" for name in _HEAD_PORTS]
        words += [] if _has_dashboard(launch) else ["--include-dashboard=false"]
    else:
        words.append(f"--address={terms.addresses[0]}:{_ports(terms, 0)['port']}")
    words += [f"--{name}={own[name]}" for name in _PORTS]
    words += ["--min-worker-port=0", "--max-worker-port=0"]
    words.append(f"--num-cpus={launch.cpus_per_rank or max(1, cpus // share)}")
    words.append(f"--num-gpus={len(launch.devices_of(site.index))}")
    memory_bytes = launch.memory_bytes or _machine_bytes() // share
    words.append(f"--object-store-memory={decide_store_bytes(memory_bytes, _shm_free_bytes() // share)}")
    return words


def decide_store_bytes(memory_bytes: int, shm_bytes: int) -> int:
    """Size of a node's object store: a part of its memory, within what its share of /dev/shm holds. Pure."""
    return max(_LEAST_STORE_BYTES, min(int(memory_bytes * _MEMORY_SHARE), int(shm_bytes * _STORE_SHARE)))


def _ports(terms: AttemptTerms, place: int) -> dict[str, str]:
    """Of one node, by the option that takes each."""
    names = (*_PORTS, *_HEAD_PORTS)
    told = terms.cluster[place * len(names) : (place + 1) * len(names)]
    return {name: where.rpartition(":")[2] for name, where in zip(names, told, strict=True)}


def _token(launch: LaunchSpec, terms: AttemptTerms) -> str:
    return hashlib.sha256(f"ray\0{launch.token}\0{launch.launch}\0{terms.attempt}".encode()).hexdigest()


def _node_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Of a node and of all that Ray starts on it."""
    told = {name: value for name, value in env.items() if name not in _OWN}
    return {**told, "PYTHONUNBUFFERED": "1", "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1"}


def _has_dashboard(launch: LaunchSpec) -> bool:
    """It takes as long to start as all the rest of a cluster, which waits for it."""
    return launch.env.get(_DASHBOARD) != "0"


def _has_started(log: Path) -> bool:
    with suppress(OSError):
        return _STARTED in log.read_text(encoding="utf-8", errors="replace")
    return False


def _keep_logs(logs: Path, to: Path) -> None:
    """Ray's own logs, as much as is worth keeping: the smallest first."""
    room = _LOGS_BYTES
    files = sorted((path for path in logs.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    for path in files:
        room -= (size := path.stat().st_size)
        if room < 0:
            return
        if size:
            target = to / path.relative_to(logs)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _shm_free_bytes() -> int:
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").free  # noqa: S108 - where Ray keeps its objects
    return 0


RULES = RayRules()
