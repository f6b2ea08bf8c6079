"""A gang on its machines: what a backend is asked to start, and what it says about it.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gangline.domain.phase import Reason
from gangline.domain.spec import SlurmOptions

__all__ = [
    "Capability",
    "Cleared",
    "GangSpec",
    "Handle",
    "Launch",
    "Liveness",
    "NodePlacement",
    "Observation",
    "Places",
    "PoolCapacity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the agents of a run find things, as paths on their machines."""

    run_dir: str
    objects: str
    """Contents of snapshots."""
    answers: str
    """What interpreters have said of themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """What one node of a gang may use."""

    node: int
    devices: tuple[str, ...] = ()
    """Accelerators by the id that their vendor's visibility variable takes, disjoint between live runs."""
    host: str = ""
    """"" where the backend chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """One launch of a run: everything a backend needs to start its agents."""

    run_id: str
    name: str
    launch: int
    """Number of this launch of the run, from 0. A launch is one set of agents; it may hold several attempts."""
    first_attempt: int
    run_dir: str
    nodes: int
    min_nodes: int | None = None
    """With how many of them the gang still goes on; None: all."""
    procs_per_node: int
    placements: tuple[NodePlacement, ...] = ()
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    """0: none are reserved; ranks share what there is."""
    memory_bytes: int | None = None
    time_limit_s: float | None = None
    notice_s: float = 60.0
    """How long before the end of its time a gang is told."""
    grace_s: float = 30.0
    """How long a gang may then take to end."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    """What the run asks of Slurm; other backends don't look at it."""
    exclude_hosts: tuple[str, ...] = ()
    """Hosts that are not to be used, the worst first; at least `nodes` others are left in the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What `--dry-run` prints: exactly what the backend is given. Pure data, made by `Backend.render`."""

    backend: str
    commands: tuple[tuple[str, ...], ...]
    """One argument vector per node; one for all of them where a scheduler starts the agents."""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files, by path relative to the run directory, that are written before the launch."""
    gang: GangSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What a backend needs to find a launch again; stored as JSON."""

    backend: str
    version: int
    data: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"backend": self.backend, "version": self.version, "data": dict(self.data)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Handle:
        """From its JSON form."""
        return cls(backend=raw["backend"], version=raw["version"], data=raw["data"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What became of a run's folder on the machines of its pool."""

    kept: str | None = None
    """Where its checkpoints are now, where they were to be kept."""
    freed_bytes: int = 0
    left: str = ""
    """Why something of it stays; "": nothing does."""


class Liveness(str, Enum):
    """What a backend can say of a launch. UNKNOWN decides nothing."""

    PENDING = "pending"
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One answer of a backend about one launch."""

    liveness: Liveness
    detail: str = ""
    """The backend's own words: a pending reason, a state, an error."""
    cancelled: bool = False
    """GONE, and the backend knows that somebody ended it from outside Gangline."""
    preempted: bool = False
    """GONE, or put back into its queue: the machines were taken away for somebody else, or by somebody."""
    reason: Reason | None = None
    """GONE, or put back into its queue (also ALIVE again since), and the backend knows why; counts where no leader has
    left a result, or one that says no more than that it was told to end (`preempted`)."""
    at_fault: Sequence[str] | None = None
    """GONE: names of the machines that the backend says have failed the launch; (): some, and it does not say which;
    None: it says nothing of machines."""
    ends_at: float | None = None
    """ALIVE: when the machines are taken back, by their own clock; inf: never; None: the backend does not say."""
    lost_nodes: Sequence[int] = ()
    """Nodes whose agent is gone while others live."""
    mirrored: float | None = None
    """Without SHARED_FILES: when, by this server's clock, the mirror last held all that the launch had written. The
    silence of a leader is measured by it, so None, or a mirror that stands still, says nothing against anybody."""


class Capability(str, Enum):
    """What a backend can do beyond the minimum."""

    SHARED_FILES = "shared_files"
    """The server's run directory is the agents' own; elsewhere it is a mirror, and the backend keeps it."""
    MULTI_NODE = "multi_node"
    DEVICES = "devices"
    """The server hands out devices; elsewhere agents use those that they find themselves given."""
    OWN_QUEUE = "own_queue"
    """The backend lets launches wait (PENDING) and says why; the server hands them over without counting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """A part of a pool that fills up by itself (see `Backend.lane`): what it has, and what all its users leave free."""

    name: str
    is_usual: bool
    """Runs go there that name none."""
    nodes: int
    idle_nodes: int
    cpus: int
    free_cpus: int
    devices: int
    free_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """What a pool could ever hold at once; used to refuse the impossible at submit and to fit what waits."""

    nodes: int
    """Most nodes that one gang may have."""
    ranks: int
    """Most ranks that may run at once."""
    cpus: int
    memory_bytes: int
    devices: tuple[str, ...] = ()
    device_kind: str = ""
    """`nvidia`, `amd` or ""."""
    knows_devices: bool = True
    """False: the pool has not said yet what its machines have, so that no devices here do not mean none there."""
    hosts: tuple[str, ...] = ()
    """The machines by their names; empty: the backend does not know them, and has as many as `nodes`."""
    parts: tuple[PoolPart, ...] = ()
    """Of a backend with a queue of its own, as it said a moment ago; empty: it has none, or does not say."""

    @property
    def num_hosts(self) -> int:
        return len(self.hosts) or self.nodes
