"""What the agents of one launch were told: `launch.json`, typed. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.domain.errors import InvalidRequest, SpecInvalid
from gangline.domain.phase import Budget
from gangline.domain.spec import (
    CheckpointPolicy,
    EntryKind,
    LogPolicy,
    NoticeSignal,
    OnHang,
    OnMismatch,
    OnTimeLimit,
    PreflightPolicy,
    RestartPolicy,
    ResumeMode,
    StartMode,
    StopPolicy,
    Strategy,
    WatchPolicy,
)
from gangline.rundir.layout import RunDir

if TYPE_CHECKING:
    from gangline.domain.signatures import Signature

__all__ = ["LAUNCH_VERSION", "LaunchInvalid", "LaunchSpec", "Shape", "load_launch", "parse_launch"]

LAUNCH_VERSION = 1


class LaunchInvalid(InvalidRequest):
    """`launch.json` is missing, torn, or not what this agent understands."""

    code = "launch_invalid"


@dataclass(frozen=True, slots=True)
class Shape:
    """The gang of one attempt: nodes of its launch, those that were lost left out, each with as many ranks.

    Nodes keep the number that they have in the launch; ranks are numbered without gaps.
    """

    nodes: tuple[int, ...]
    """Ascending."""
    procs_per_node: int

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.procs_per_node

    def ranks_of(self, node: int) -> range:
        """Global ranks of a node of the launch."""
        first = self.nodes.index(node) * self.procs_per_node
        return range(first, first + self.procs_per_node)

    def node_of(self, rank: int) -> int:
        """Node of the launch that holds a global rank."""
        return self.nodes[rank // self.procs_per_node]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One launch, complete. The fields are those of `launch.json`; see docs/contributing/architecture.md."""

    run_id: str
    run_name: str
    launch: int
    first_attempt: int
    nodes: int
    """Agents of this launch."""
    min_nodes: int | None = None
    """With how many of them an attempt still goes on; None: all."""
    procs_per_node: int
    token: str = field(repr=False)
    entry_kind: EntryKind
    entry: str
    args: tuple[str, ...] = ()
    workdir: str = "."
    python: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    unbuffered: bool = True
    start: StartMode = StartMode.AUTO
    preload: tuple[str, ...] = ()
    strategy: Strategy = Strategy.DDP
    devices: tuple[tuple[str, ...], ...] = ()
    """Visible devices of each node; shorter than `nodes` where the pool hands out none."""
    device_kind: str = ""
    cpus_per_rank: int | None = None
    memory_bytes: int | None = None
    """Of each node, where the run asks for so much."""
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    """Its `path` is absolute."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    restarts_used: Mapping[Budget, int] = field(default_factory=dict)
    stop: StopPolicy = field(default_factory=StopPolicy)
    preflight: PreflightPolicy = field(default_factory=PreflightPolicy)
    watch: WatchPolicy = field(default_factory=WatchPolicy)
    logs: LogPolicy = field(default_factory=LogPolicy)
    outputs: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    """Of the spec; looked for before those of the table."""
    snapshot_digest: str | None = None
    objects: str | None = None
    """Folder of the contents of snapshots, where this machine reaches it."""
    delay_s: float = 0.0
    control_offset: int = 0
    """Size of `control.jsonl` when this launch was made: what lies before it is none of its business."""
    branch_attempt: int = 0
    """First attempt that began at `checkpoint.start_from`: what older ones saved lies on another branch."""
    pdb_rank: int | None = None
    """Rank that a person debugs; the gang is kept for it."""
    lease_s: float | None = None
    """How long the launch goes on when nobody renews; None: it needs nobody."""
    batch: Mapping[str, str] | None = None
    """An existing batch script that the one rank runs: `script`, and what it has said: `name chdir output error`."""

    answers: str = ""
    """Folder in which agents keep what interpreters have answered; "": nowhere."""

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else min(self.min_nodes, self.nodes)

    def shape(self, lost: Iterable[int] = ()) -> Shape:
        """The gang without the nodes that were lost."""
        gone = frozenset(lost)
        return Shape(tuple(node for node in range(self.nodes) if node not in gone), self.procs_per_node)

    def devices_of(self, node: int) -> tuple[str, ...]:
        """Devices that a node may use."""
        return self.devices[node] if node < len(self.devices) else ()


def load_launch(run: RunDir, number: int) -> LaunchSpec:
    """Read `launch.json`.

    Raises:
        LaunchInvalid: it cannot be read, or says what this agent does not understand.
    """
    path = run.launch(number).spec
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaunchInvalid(f"Launch {number} has no readable {path}", why=str(error)) from error
    if not isinstance(raw, dict):
        raise LaunchInvalid(f"{path} holds no JSON object")
    return parse_launch(raw, default_checkpoints=run.checkpoints)


def parse_launch(raw: Mapping[str, Any], *, default_checkpoints: Path) -> LaunchSpec:
    """Check and type what `launch.json` says.

    Args:
        default_checkpoints: taken where the launch names no checkpoint folder.
    Raises:
        LaunchInvalid: a key is missing, or its value is of the wrong kind.
    """
    if raw.get("version") != LAUNCH_VERSION:
        raise LaunchInvalid(
            f"launch.json is of version {raw.get('version')}",
            why=f"this agent understands version {LAUNCH_VERSION}",
            fix="Start agents and server from one version of Gangline",
        )
    try:
        spec = _typed(raw, default_checkpoints)
        possible = spec.nodes >= 1 and spec.procs_per_node >= 1
    except (KeyError, TypeError, ValueError, AttributeError, SpecInvalid) as error:
        raise LaunchInvalid("launch.json is not complete", why=f"{type(error).__name__}: {error}") from error
    if not possible:
        raise LaunchInvalid(f"A gang of {spec.nodes} nodes with {spec.procs_per_node} ranks each cannot be")
    return spec


def _typed(raw: Mapping[str, Any], default_checkpoints: Path) -> LaunchSpec:
    return LaunchSpec(
        **{name: raw[name] for name in ("run_id", "run_name", "launch", "first_attempt", "nodes", "procs_per_node")},
        **{name: raw[name] for name in ("token", "entry", "python")},
        **{name: raw[name] for name in _PLAIN if name in raw},
        args=tuple(raw.get("args") or ()),
        preload=tuple(raw.get("preload") or ()),
        outputs=tuple(raw.get("outputs") or ()),
        entry_kind=EntryKind(raw["entry_kind"]),
        start=StartMode(raw.get("start", StartMode.AUTO.value)),
        strategy=Strategy(raw.get("strategy", Strategy.DDP.value)),
        devices=tuple(tuple(str(device) for device in node) for node in raw.get("devices") or ()),
        checkpoint=_checkpoint(raw.get("checkpoint") or {}, default_checkpoints),
        restarts=RestartPolicy(**raw.get("restarts") or {}),
        restarts_used={Budget(name): count for name, count in (raw.get("restarts_used") or {}).items()},
        stop=_stop(raw.get("stop") or {}),
        preflight=_preflight(raw.get("preflight") or {}),
        watch=_watch(raw.get("watch") or {}),
        logs=LogPolicy(**raw.get("logs") or {}),
        signatures=_parse_signatures(raw.get("signatures") or {}),
    )


_PLAIN = (
    "min_nodes",
    "workdir",
    "env",
    "unbuffered",
    "device_kind",
    "cpus_per_rank",
    "memory_bytes",
    "snapshot_digest",
    "objects",
    "delay_s",
    "lease_s",
    "control_offset",
    "answers",
    "branch_attempt",
    "pdb_rank",
    "batch",
)


def _checkpoint(raw: Mapping[str, Any], default: Path) -> CheckpointPolicy:
    return CheckpointPolicy(
        path=raw.get("path") or str(default),
        keep_last=raw.get("keep_last", CheckpointPolicy().keep_last),
        resume=ResumeMode(raw.get("resume", ResumeMode.AUTO.value)),
        start_from=raw.get("start_from"),
    )


def _stop(raw: Mapping[str, Any]) -> StopPolicy:
    policy = OnTimeLimit(raw.get("on_time_limit", OnTimeLimit.FAIL.value))
    notice = NoticeSignal(raw.get("notice_signal", NoticeSignal.NONE.value))
    return StopPolicy(**{**raw, "on_time_limit": policy, "notice_signal": notice})


def _preflight(raw: Mapping[str, Any]) -> PreflightPolicy:
    policy = OnMismatch(raw.get("on_mismatch", OnMismatch.FAIL.value))
    lists = {name: tuple(raw.get(name) or ()) for name in ("packages", "checks")}
    return PreflightPolicy(**{**raw, **lists, "on_mismatch": policy})


def _watch(raw: Mapping[str, Any]) -> WatchPolicy:
    policy = OnHang(raw.get("on_hang", OnHang.RESTART.value))
    return WatchPolicy(**{**raw, "on_hang": policy})


def _parse_signatures(raw: Mapping[str, str]) -> tuple[Signature, ...]:
    if not raw:
        return ()
    from gangline.domain.signatures import parse_own  # noqa: PLC0415 - else nothing has to be classified at the start

    return tuple(parse_own(raw))
