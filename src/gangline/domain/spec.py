"""The frozen description of a run. Nothing about a run is outside it.

One schema serves YAML, Python, HTTP and the command line: the metadata of each field carries its help text and its flag
spellings, `gangline.wire` derives the JSON Schema from these classes, and `gangline.cli` its options.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gangline.domain.described import described as _f
from gangline.domain.named import named

__all__ = [
    "CheckpointPolicy",
    "EntryKind",
    "Environment",
    "LogPolicy",
    "NoticeSignal",
    "OnHang",
    "OnMismatch",
    "OnTimeLimit",
    "PreflightPolicy",
    "Resources",
    "RestartPolicy",
    "ResumeMode",
    "RunSpec",
    "SlurmOptions",
    "SnapshotRef",
    "StartMode",
    "StopPolicy",
    "Strategy",
    "WatchPolicy",
]


_LONGEST_NOTICE_S = 60.0


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class EntryKind(_Text):
    """What the ranks execute."""

    SCRIPT = "script"
    MODULE = "module"
    NOTEBOOK = "notebook"
    COMMAND = "command"


class Strategy(_Text):
    """How the ranks find and use one another; decides which variables a rank gets beyond the common contract."""

    DDP = "ddp"
    FSDP = "fsdp"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    HOROVOD = "horovod"
    MPI = "mpi"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    RAY = "ray"
    NONE = "none"


class StartMode(_Text):
    """How a node starts its ranks."""

    AUTO = "auto"
    WARM = "warm"
    EXEC = "exec"


class ResumeMode(_Text):
    """What a first attempt does with checkpoints that are already there."""

    AUTO = "auto"
    REQUIRED = "required"
    NEVER = "never"


class NoticeSignal(_Text):
    """What every rank gets besides, when it is told that the time limit is near."""

    NONE = "none"
    USR1 = "USR1"
    USR2 = "USR2"


class OnTimeLimit(_Text):
    """What follows when the time limit is reached."""

    FAIL = "fail"
    STOP = "stop"
    CONTINUE = "continue"


class OnMismatch(_Text):
    """What follows when the nodes of a gang differ in what must be equal."""

    FAIL = "fail"
    WARN = "warn"


class OnHang(_Text):
    """What follows when the gang hangs."""

    WARN = "warn"
    RESTART = "restart"
    FAIL = "fail"


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one run holds while it runs."""

    nodes: int = _f(
        1,
        "Nodes in the gang; 2:4 starts with as many as there are, and goes on with 2.",
        "--nodes",
        "--num-nodes",
        "--nnodes",
    )
    min_nodes: int | None = _f(
        None, "Fewest nodes with which the gang still runs; default: all of --nodes.", "--min-nodes"
    )
    procs_per_node: int | None = _f(
        None,
        "Ranks on each node; default: one per GPU that is asked for, else 1.",
        "--procs-per-node",
        "--nproc-per-node",
        "--num-procs-per-node",
    )
    gpus_per_node: int | None = _f(
        None, "Accelerators on each node; default: one per rank where the pool has any, else 0.", "--gpus-per-node"
    )
    cpus_per_rank: int | None = _f(
        None, "CPU cores reserved for each rank; default: cores are shared, none reserved.", "--cpus-per-rank"
    )
    memory_bytes: int | None = _f(None, "Memory reserved on each node, e.g. 16GB; no limit.", "--memory", unit="bytes")


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The interpreter and the variables that ranks see."""

    python: str | None = _f(
        None, "Interpreter, or folder of a virtual or conda environment, that runs the ranks.", "--python", "--venv"
    )
    env: Mapping[str, str] = _f(
        None,
        "Variable for every rank: K=V, or K to pass the value that the submitting shell has.",
        "--env",
        factory=dict,
    )
    secrets: tuple[str, ...] = _f((), "Name of a secret to inject.", "--secret")
    preload: tuple[str, ...] = _f((), "Module that warm start imports once for all ranks of a node.", "--preload")
    start: StartMode = _f(StartMode.AUTO, "How ranks start: warm (import once, fork), exec, or auto.", "--start")
    unbuffered: bool = _f(True, "Python writes its output at once.", "--unbuffered/--buffered")


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What a run asks of Slurm beyond its resources; on other backends these count for nothing."""

    partition: str | None = _f(None, "Partition, or several with commas between.", "--partition")
    account: str | None = _f(None, "Account that is charged.", "--account")
    qos: str | None = _f(None, "Quality of service.", "--qos")
    constraint: str | None = _f(None, "Features that nodes must have, as for sbatch.", "--constraint")
    reservation: str | None = _f(None, "Reservation to run in.", "--reservation")
    nodelist: str | None = _f(None, "Nodes that must be among those of the gang.", "--nodelist")
    exclude: str | None = _f(None, "Nodes that are not to be used.", "--exclude")
    exclusive: bool | None = _f(None, "Share nodes with nobody.", "--exclusive/--shared")
    gres: str | None = _f(None, "Generic resources of each node, in place of --gpus-per-node.", "--gres")
    dependency: str | None = _f(None, "What has to come first, as for sbatch: afterok:123.", "--dependency")
    setup: tuple[str, ...] = _f(
        (), "Line of shell that prepares a node before the ranks start, e.g. `module load cuda`.", "--setup"
    )
    options: Mapping[str, str] = _f(
        None, "Any other option of sbatch: NAME=VALUE, or NAME.", "--sbatch-option", factory=dict
    )
    script: str | None = _f(
        None, "Existing batch script, taken as it is with its #SBATCH lines, in place of an entry.", "--sbatch"
    )
    directives: Mapping[str, str] = _f(
        None, "Options of sbatch that the script names; filled in at submit.", factory=dict
    )


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """Where checkpoints live and which of them are kept."""

    path: str | None = _f(
        None,
        "Folder for checkpoints, from where the command is typed or the file lies; default: in the run's own folder.",
        "--checkpoint-path",
    )
    keep_last: int = _f(3, "Newest checkpoints that are kept; 0 keeps all.", "--keep-last")
    resume: ResumeMode = _f(
        ResumeMode.AUTO,
        "auto: start from the newest complete checkpoint, if any; required: fail without one; never: start fresh.",
        "--resume",
    )
    start_from: str | None = _f(
        None,
        "Checkpoint to start from, instead of the newest one: a folder, RUN:STEP or RUN:latest. "
        "Restarts go on from what the run itself has saved since.",
        "--from-checkpoint",
    )


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Separate budgets for the separate kinds of failure, and the pause before a restart.

    The first restart of a run follows at once; restart n of it waits `backoff_s * 2**(n - 2)`, at most `max_backoff_s`.
    """

    max_restarts: int = _f(0, "Restarts after errors of the training code.", "--max-restarts")
    max_infrastructure_restarts: int = _f(
        3, "Restarts after lost nodes, killed ranks and other trouble of the machines.", "--max-infra-restarts"
    )
    max_preemptions: int | None = _f(None, "Restarts after preemption; default: no limit.", "--max-preemptions")
    same_failure_limit: int = _f(
        3,
        "Failures with the same exception, signal or exit code at the same step, one after the other, that end the run "
        "whatever is left of max_restarts; numbers in messages do not count. Lost nodes and other trouble of the "
        "machines are never counted. 0: any number.",
        "--same-failure-limit",
    )
    backoff_s: float = _f(
        1.0, "Pause before the second restart; doubles with each further one.", "--restart-backoff", unit="seconds"
    )
    max_backoff_s: float = _f(60.0, "Longest pause before a restart.", "--restart-max-backoff", unit="seconds")


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """Limits in time, and how much warning ranks get."""

    time_limit_s: float | None = _f(
        None, "Longest time that an attempt may run, e.g. 90m.", "--time-limit", unit="seconds"
    )
    time_limit_notice_s: float | None = _f(
        None,
        "How long before the time limit ranks are told, so that they can save; default: a tenth of it, at most 60s.",
        "--time-limit-notice",
        unit="seconds",
    )
    notice_signal: NoticeSignal = _f(
        NoticeSignal.NONE,
        "Signal for Python ranks at that moment, where scripts handle one instead of asking `gangline.should_stop()`.",
        "--notice-signal",
    )
    on_time_limit: OnTimeLimit = _f(
        OnTimeLimit.FAIL,
        "What a reached time limit means: the run fails, counts as stopped, or goes on from its newest checkpoint.",
        "--on-time-limit",
    )
    max_continuations: int | None = _f(
        None,
        "How often the run may go on after a time limit; default: as long as it makes progress.",
        "--max-continuations",
    )
    grace_s: float = _f(30.0, "Time from the stop signal until processes are killed.", "--stop-grace", unit="seconds")
    failure_grace_s: float = _f(
        5.0, "The same, for the other ranks after one has failed.", "--failure-grace", unit="seconds"
    )
    start_timeout_s: float = _f(
        300.0, "How long the gang may take to assemble before the attempt fails.", "--start-timeout", unit="seconds"
    )

    def notice_s(self) -> float:
        """How long before the time limit ranks are told; 0 without one."""
        if self.time_limit_s is None:
            return 0.0
        if self.time_limit_notice_s is not None:
            return self.time_limit_notice_s
        return min(_LONGEST_NOTICE_S, self.time_limit_s / 10)


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightPolicy:
    """What is looked at before the ranks of an attempt start.

    Interpreter, torch, CUDA, NCCL, driver and snapshot are compared between the nodes of every gang.
    """

    packages: tuple[str, ...] = _f((), "Package that must be of one version on all nodes.", "--same-package")
    on_mismatch: OnMismatch = _f(
        OnMismatch.FAIL, "What follows when nodes differ in what must be equal.", "--on-mismatch"
    )
    checks: tuple[str, ...] = _f(
        (),
        "Check of every node before a launch starts its ranks: disk, clock, device, allreduce; several with commas.",
        "--preflight",
    )
    min_bandwidth_bytes: int | None = _f(
        None,
        "Least that the all-reduce check has to move in a second, e.g. 200MB; default: it only has to work.",
        "--preflight-min-bandwidth",
        unit="bytes",
    )
    max_clock_skew_s: float = _f(
        1.0, "How far clocks of nodes may be apart.", "--preflight-max-clock-skew", unit="seconds"
    )
    timeout_s: float = _f(120.0, "How long the checks may take.", "--preflight-timeout", unit="seconds")


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How much of what the ranks print is kept."""

    max_per_rank_bytes: int = _f(
        1_000_000_000,
        "Most that the log of a rank takes on disk, per attempt: past it the middle is dropped, beginning and end are "
        "kept; 0: no limit.",
        "--log-limit",
        unit="bytes",
    )


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPolicy:
    """When a gang without progress counts as hung, what follows, and what is told of ranks that hold the others up.

    Ten minutes is what NCCL itself waits for a collective: no training that works with it goes longer without a step
    by waiting alone. The ranks are looked at, and people warned, at half of it.
    """

    hang_timeout_s: float = _f(
        600.0,
        "How long the gang may show no progress before it counts as hung; 0 looks for no hangs.",
        "--hang-timeout",
        unit="seconds",
    )
    on_hang: OnHang = _f(
        OnHang.RESTART,
        "restart: end the attempt and start the next, as far as budgets allow; fail: end the run; warn: only tell.",
        "--on-hang",
    )
    straggler_factor: float = _f(
        1.5, "How many times slower than the median a rank has to be to be told of; 0: none is.", "--straggler-factor"
    )
    straggler_window_s: float = _f(
        60.0, "For how long a rank has to be slow before it is told of.", "--straggler-window", unit="seconds"
    )


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """The exact source tree of a run, by content."""

    digest: str
    """Hex digest of the tree manifest."""
    workdir: str = "."
    """Folder inside the tree in which the run was submitted and in which the ranks start; POSIX, relative."""


@named
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One training run, complete. `entry` and `entry_kind` say what runs; `args` are passed to it byte for byte."""

    entry: str = _f("", "Script, module or notebook; for a command, its program.")
    entry_kind: EntryKind = _f(EntryKind.SCRIPT, "What `entry` is.")
    args: tuple[str, ...] = _f((), "Arguments of the entry point.")
    name: str | None = _f(None, "Name that people read; default: from the entry point.", "--name", "--run-name")
    project: str = _f("default", "Project that owns the run.", "--project")
    pool: str = _f("local", "Pool of machines.", "--pool")
    priority: int = _f(0, "Larger starts earlier.", "--priority")
    strategy: Strategy = _f(Strategy.DDP, "How ranks work together.", "--strategy")
    resources: Resources = _f(None, "", factory=Resources)
    environment: Environment = _f(None, "", factory=Environment)
    checkpoint: CheckpointPolicy = _f(None, "", factory=CheckpointPolicy)
    restarts: RestartPolicy = _f(None, "", factory=RestartPolicy)
    stop: StopPolicy = _f(None, "", factory=StopPolicy)
    preflight: PreflightPolicy = _f(None, "", factory=PreflightPolicy)
    watch: WatchPolicy = _f(None, "", factory=WatchPolicy)
    logs: LogPolicy = _f(None, "", factory=LogPolicy)
    slurm: SlurmOptions = _f(None, "", factory=SlurmOptions)
    data_version: str | None = _f(None, "Version of the data, recorded with the run.", "--data-version")
    outputs: tuple[str, ...] = _f(
        (), "Path that must exist and not be empty when the run succeeds, relative to its working folder.", "--output"
    )
    include: tuple[str, ...] = _f(
        (), "Pattern, as in .gitignore, of files that are packed whatever ignore files say.", "--include"
    )
    signatures: Mapping[str, str] = _f(
        None,
        "What failures of your own mean: a regular expression for what they print, and `reason: what to do`.",
        factory=dict,
    )
    labels: Mapping[str, str] = _f(None, "Label K=V to find the run by.", "--label", factory=dict)
    snapshot: SnapshotRef | None = _f(None, "The packed source tree; filled in at submit.")
    inherited_env: Mapping[str, str] = _f(
        None, "Variables taken from the submitting shell by name pattern; filled in at submit.", factory=dict
    )
    pdb_rank: int | None = _f(None, "Rank that waits for a person in a debugger; filled in by `gangline debug --pdb`.")
