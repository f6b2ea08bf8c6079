"""A pool: one configured backend, as the platform team describes it, and how it can be reached now.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from enum import Enum

from gangline.domain.described import described as _f
from gangline.domain.errors import SpecInvalid
from gangline.domain.naming import LOCAL, check_variable
from gangline.domain.spec import SlurmOptions

__all__ = [
    "PER_RUN",
    "Finding",
    "JobStanding",
    "Pool",
    "PoolJob",
    "PoolState",
    "PoolStatus",
    "RayPool",
    "SlurmPool",
    "Spread",
    "Verdict",
    "WaitIn",
    "check_pool",
    "check_pool_name",
]

LEAST_POLL_S = 0.2

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_HOST = re.compile(r"[A-Za-z0-9_.@:\[\]-]+")
_PATH = re.compile(r"/[A-Za-z0-9_./+=:,@-]*")
_URL = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?")
_PROGRAM = re.compile(r"/?[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")
_OWN_SSH = ("ControlMaster", "ControlPath", "ControlPersist", "BatchMode", "StrictHostKeyChecking", "RequestTTY")
"""What Gangline itself tells `ssh`."""
PER_RUN = ("script", "dependency", "directives")
"""Options of Slurm that make no sense for every run of a pool."""


class WaitIn(str, Enum):
    """Where runs wait that a Slurm cluster has no room for."""

    SLURM = "slurm"
    GANGLINE = "gangline"

    def __str__(self) -> str:
        return self.value


class PoolStatus(str, Enum):
    """How a pool can be reached."""

    READY = "ready"
    UNTRIED = "untried"
    """Nobody has needed it since the server started."""
    LOGIN_NEEDED = "login_needed"
    HOST_KEY_CHANGED = "host_key_changed"
    """The machine there may be another one: somebody has to ask the site before anybody logs in."""
    UNREACHABLE = "unreachable"
    REMOVED = "removed"
    """It is in `pools.yaml` no more, and serves the runs that it still has."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """How a pool can be reached now, as far as is known without asking it."""

    status: PoolStatus = PoolStatus.READY
    text: str = ""
    """Why it cannot, in the words of who said so; "" where nothing is to say."""
    brief: str = ""
    """The same in one sentence, for each run that waits for it."""
    command: str = ""
    """What a person has to type so that it can be reached again."""
    since: float | None = None
    """When that began; None: not known."""


class JobStanding(str, Enum):
    """How a job that an engine holds for us stands to our runs."""

    FOLLOWED = "followed"
    ORPHAN = "orphan"
    """No run counts on it."""
    IDLE = "idle"
    """It holds machines, and nothing of ours lives there."""
    STUCK = "stuck"
    """Its ranks do nothing."""
    NEVER = "never"
    """It waits, and can never start."""
    MISSING = "missing"
    """A run counts on it, and the engine does not list it."""
    OTHERS = "others"
    """It belongs to another server."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolJob:
    """One job of Gangline's in an engine that has a queue of its own."""

    job: str
    state: str
    """In the engine's words; "" where it does not list it."""
    run_id: str
    launch: int
    since: float | None = None
    """When it started, or was submitted if it waits; by the engine's clock."""
    nodes: int | None = None
    standing: JobStanding
    text: str = ""
    """Why it stands so, for people."""
    fix: str = ""

    @property
    def is_zombie(self) -> bool:
        """Whether ending it loses nothing."""
        return self.standing in {JobStanding.ORPHAN, JobStanding.IDLE}


class Verdict(str, Enum):
    """What an examination has found."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNCHECKED = "unchecked"
    """It cannot be told before something else is put right, which has a line of its own."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at when a pool was examined."""

    check: str
    """In a word or two: `connection`, `work folder`."""
    verdict: Verdict
    text: str
    fix: str = ""
    """What to do, where something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPool:
    """A Slurm cluster, reached by its own commands or over SSH."""

    name: str = field()
    work: str = _f(
        MISSING,
        "Absolute path of a folder that login and compute nodes share; runs, code and agents live below it.",
        "--work",
    )
    ssh: str | None = _f(
        None,
        "Host as `ssh` knows it, such as an alias of the user's own configuration; default: the commands of Slurm are "
        "on the server's own machine.",
        "--ssh",
    )
    ssh_options: tuple[str, ...] = _f(
        (), "Argument for `ssh` ahead of the host, e.g. `-F` and `/path/config`.", "--ssh-option"
    )
    python: str | None = _f(
        None, "Interpreter >= 3.10 of the agents, there; default: the newest on the login node.", "--python"
    )
    ranks_python: str | None = _f(
        None,
        "Interpreter of the ranks where a run names none; default: `python3` as it is found after `setup`.",
        "--ranks-python",
    )
    defaults: SlurmOptions = _f(None, "What holds for every run that does not say otherwise.", factory=SlurmOptions)
    gpus_per_node: int = _f(0, "Of the largest node; 0: Slurm is asked.", "--gpus-per-node")
    cpus_per_node: int = _f(0, "Of the largest node; 0: Slurm is asked.", "--cpus-per-node")
    wait_in: WaitIn = _f(WaitIn.SLURM, "Where runs wait that the cluster has no room for.", "--wait-in")
    max_jobs: int | None = _f(
        None, "Most jobs of Gangline's in Slurm at once; further runs wait in Gangline.", "--max-jobs"
    )
    ahead_s: float = _f(
        86_400.0,
        "How long before the end of a job the job with which its run goes on is submitted, to wait for that end (runs "
        "with `on_time_limit: continue` where runs wait in Slurm); 0: only after it.",
        "--ahead",
        unit="seconds",
    )
    ahead_wait_s: float = _f(
        600.0,
        "How long such a job, once it has begun, holds its machines for a server that is away and has not said what to "
        "start; then it ends, and the run goes on in another one when the server is back.",
        "--ahead-wait",
        unit="seconds",
    )
    poll_s: float = _f(
        5.0, "How often `squeue` is asked, for all runs together; at least 0.2s.", "--poll", unit="seconds"
    )
    env: Mapping[str, str] = _f(
        None, "Variable for every rank of the pool, e.g. NCCL_SOCKET_IFNAME=ib0.", "--env", factory=dict
    )

    @property
    def place(self) -> str:
        """Where its runs are: it stays the same while there are any."""
        return self.work


class Spread(str, Enum):
    """How the nodes of a gang lie on the nodes of a Ray cluster."""

    STRICT = "strict"
    PACK = "pack"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPool:
    """A Ray cluster that is there, reached by its Jobs API."""

    name: str = field()
    address: str = _f(MISSING, "Of the dashboard, which holds the Jobs API, e.g. http://head:8265.", "--address")
    token_file: str | None = _f(
        None, "File with the cluster's token, where it wants one (RAY_AUTH_MODE=token).", "--token-file"
    )
    python: str = _f(
        "python", "Interpreter with the cluster's own ray, on its head: a path, or a name on its PATH.", "--python"
    )
    ranks_python: str | None = _f(
        None, "Interpreter of the ranks where a run names none; default: the one that submits.", "--ranks-python"
    )
    spread: Spread = _f(
        Spread.STRICT,
        "`strict`: each node of a gang on a Ray node of its own; `pack`: as few Ray nodes as hold them.",
        "--spread",
    )
    max_nodes: int = _f(0, "Most Ray nodes, where the cluster grows by itself; 0: those that it has.", "--max-nodes")
    poll_s: float = _f(
        1.0, "How often the Jobs API is asked, for all runs together; at least 0.2s.", "--poll", unit="seconds"
    )
    env: Mapping[str, str] = _f(
        None, "Variable for every rank of the pool, e.g. NCCL_SOCKET_IFNAME=ib0.", "--env", factory=dict
    )

    @property
    def place(self) -> str:
        """Where its runs are: it stays the same while there are any."""
        return self.address


Pool = SlurmPool | RayPool
"""What describes a pool in `pools.yaml`; one class for each kind of backend."""

_RESERVED = frozenset({"nodes", "file"})
"""Words of the HTTP API in the place of a pool's name."""


def check_pool_name(name: str) -> None:
    """Refuse what cannot be the name of a configured pool.

    Raises:
        SpecInvalid
    """
    if name == LOCAL:
        raise SpecInvalid(
            f"A pool cannot be called `{LOCAL}`",
            why="That is the server's own machine, which is always there",
            fix="Choose another name, such as that of the cluster.",
        )
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise SpecInvalid(
            f"`{name}` is no name of a pool",
            why="Pools are named by 1 to 40 letters, digits, dots, dashes and underscores, but not `nodes` or `file`",
            fix="For example: a100",
        )


def check_pool(pool: Pool) -> None:
    """Refuse a description that could not be used, or would be used for something else than was meant.

    Raises:
        SpecInvalid: names the key, the value and what is valid.
    """
    check_pool_name(pool.name)
    if isinstance(pool, RayPool):
        _check_ray(pool)
    else:
        _check_slurm(pool)
    if pool.poll_s < LEAST_POLL_S:
        fix = f"Give it at least {LEAST_POLL_S:g}s."
        raise _wrong(pool, "poll", f"{pool.poll_s:g}s", "Every poll is work for the cluster's controller", fix)
    for name in pool.env:
        check_variable(name, f"`env` of pool `{pool.name}`")


def _check_ray(pool: RayPool) -> None:
    if not _URL.fullmatch(pool.address):
        fix = "Write it as in a browser: http://head:8265."
        raise _wrong(pool, "address", pool.address, "It takes the address of the dashboard", fix)
    if not _PROGRAM.fullmatch(pool.python):
        raise _wrong(pool, "python", pool.python, "It takes a path, or a name that is looked up on PATH", "")
    for key in ("token_file", "ranks_python"):
        path = getattr(pool, key)
        if path is not None:
            _check_path(pool, key, path)


def _check_slurm(pool: SlurmPool) -> None:
    _check_path(pool, "work", pool.work)
    if pool.work.strip("/") == "":
        raise _wrong(pool, "work", pool.work, "The root of the file system belongs to all", "Name a folder below it.")
    _check_ssh(pool)
    if pool.python is not None:
        _check_path(pool, "python", pool.python)
    if pool.ranks_python is not None and "/" in pool.ranks_python:
        _check_path(pool, "ranks_python", pool.ranks_python)
    for name in PER_RUN:
        if getattr(pool.defaults, name):
            raise _wrong(pool, f"defaults.{name}", getattr(pool.defaults, name), "It belongs to a single run", "")


def _check_ssh(pool: SlurmPool) -> None:
    if pool.ssh is not None and (pool.ssh.startswith("-") or not _HOST.fullmatch(pool.ssh)):
        fix = "Name the host as you would type it: `bastion`, `me@login.example.org`; options go to `ssh_options`."
        raise _wrong(pool, "ssh", pool.ssh, "It takes one host", fix)
    if pool.ssh is None and pool.ssh_options:
        fix = "Name a host with `ssh`, or leave them out."
        raise _wrong(pool, "ssh_options", " ".join(pool.ssh_options), "No host is named that they were for", fix)
    for word in pool.ssh_options:
        if any(character in word for character in "\0\r\n"):
            raise _wrong(pool, "ssh_options", word, "It holds the end of a line", "")
        own = next((name for name in _OWN_SSH if name.lower() in word.lower()), None)
        if own is not None:
            fix = "Leave it out; what the connection itself needs, `ssh` reads from your own configuration."
            raise _wrong(pool, "ssh_options", word, f"Gangline sets {own} itself", fix)
    for word, value in zip(pool.ssh_options, pool.ssh_options[1:], strict=False):
        if word in {"-F", "-i"} and not value.startswith(("/", "~")):
            fix = f"Give {word} an absolute path: the server does not know what it is relative to."
            raise _wrong(pool, "ssh_options", f"{word} {value}", "The path is relative", fix)


def _check_path(pool: Pool, key: str, path: str) -> None:
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        why = "It takes an absolute path of the cluster, of letters, digits and _ . / + = : , @ -"
        raise _wrong(pool, key, path, why, "For example: /shared/me/gangline" if key == "work" else "")


def _wrong(pool: Pool, key: str, value: object, why: str, fix: str) -> SpecInvalid:
    return SpecInvalid(f"`{key}` of pool `{pool.name}` is `{value}`", why=why, fix=fix)
