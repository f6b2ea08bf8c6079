"""The JSON that the server answers with, and that `--json` prints. Documented and stable; see docs/reference/json.md.

Typed dictionaries rather than models: the client pays nothing to import them, the server publishes them in OpenAPI.
Times are seconds since the epoch (float), durations seconds, sizes bytes. A field that is not known is null, never
absent.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

__all__ = [
    "AttemptView",
    "CheckpointView",
    "ClearedView",
    "CodeView",
    "DifferenceView",
    "ErrorBody",
    "ErrorView",
    "EventView",
    "FailureView",
    "FindingView",
    "HealthView",
    "LogChunk",
    "LogHit",
    "MetricBucket",
    "MetricView",
    "NodeHealthView",
    "NodeMarkView",
    "NodeView",
    "PoolDetail",
    "PoolFileView",
    "PoolView",
    "RankView",
    "RunDetail",
    "RunSummary",
    "SearchEnd",
    "StacksGroup",
    "StacksRank",
    "StacksView",
]


class RunSummary(TypedDict):
    """One row of `gangline ps`."""

    id: str
    name: str
    project: str
    user: str
    pool: str
    phase: str
    reason: str | None
    message: str
    nodes: int
    procs_per_node: int
    gpus_per_node: int
    attempt: int | None
    """Number of the newest attempt; null before the first."""
    attempt_nodes: int | None
    """Nodes of the newest attempt: fewer than `nodes` where an elastic gang runs with what there is, more where an
    existing batch script was given them."""
    restarts: int
    exit_code: int | None
    """The run's outcome as `gangline` would exit with it; null while it is not over."""
    created: float
    started: float | None
    ended: float | None
    duration_s: float | None
    """How long its attempts took together, so far."""
    step: int | None
    """Newest step that rank 0 reported."""
    total_steps: int | None
    labels: dict[str, str]
    version: int
    """Grows with every move of the run; what `GET /runs/{id}/wait` waits to see change."""
    rerun_of: str | None
    """Run whose spec and code this one took over."""
    debug_of: str | None
    """Run that this one repeats in a smaller world, for a person to look at."""
    revision: int
    """How often `gangline resume` has changed the spec; the history says what."""
    lease_s: float | None
    """How long the run goes on when whoever submitted it renews no more; null: it needs nobody."""


class FailureView(TypedDict):
    """The first rank that failed, by time."""

    rank: int
    node: int
    host: str
    pid: int | None
    exit_code: int | None
    signal: int | None
    signal_name: str | None
    time: float
    error_type: str | None
    error_message: str | None
    error_in_log: bool
    """It is the last one that the rank printed, before it ended in a way of its own: it may or may not be why."""
    traceback: str | None
    causes: list[dict[str, Any]]
    """What the exception came from, or holds: {"type", "message"}, nearest first."""
    log_tail: str
    step: int | None
    """The newest step that the rank had reported."""
    total_steps: int | None
    phase: str | None
    """The `gangline.phase` that it was in."""


class RankView(TypedDict):
    """One rank of one attempt."""

    rank: int
    node: int
    pid: int | None
    exit_code: int | None
    signal: int | None
    ended_by: str | None
    """`self` or `platform`; null while it runs."""
    started: float | None
    ended: float | None
    peak_rss_bytes: int | None
    step: int | None
    """The newest that it had reported when it ended."""
    phase: str | None
    place: str | None
    """Where it was when a failure ended the attempt: `waiting in all_reduce (train.py:41)`."""
    error: str | None
    """The exception that ended it, in one line."""


class NodeView(TypedDict):
    """One node of one attempt."""

    node: int
    host: str
    address: str
    agent_pid: int | None
    devices: list[str]
    environment: dict[str, Any] | None
    """Interpreter, packages, drivers, devices; see docs/reference/run-directory.md."""
    machines: list[str]
    """Of an existing batch script, whose agent is on the first of them alone: all that its job has."""
    tasks: int | None
    """How many tasks the scheduler has given that job."""


class AttemptView(TypedDict):
    """One start of the whole gang."""

    number: int
    launch: int
    outcome: str | None
    """`succeeded`, `failed`, `stopped`, `preempted`; null while it runs."""
    reason: str | None
    message: str
    started: float | None
    running: float | None
    """When every rank had been started."""
    ended: float | None
    resume: str | None
    """Checkpoint that it started from."""
    resume_step: int | None
    start_mode: str | None
    """`warm` or `exec`."""
    first_failure: FailureView | None
    """Known as soon as a rank has failed, also while the others are being ended."""
    signature: str | None
    """Why, as a row of docs/reference/signatures.md."""
    hint: str
    """What to do about it."""
    next: str | None
    """`end`, `restart`, `relaunch`; null while nobody has decided."""
    restart_message: str
    ranks: list[RankView]
    nodes: list[NodeView]


class CheckpointView(TypedDict):
    """One checkpoint, or what is left of one."""

    step: int
    attempt: int
    path: str
    size_bytes: int
    num_files: int
    time: float
    duration_s: float | None
    state: str
    """complete, damaged, incomplete (its save was not finished), removed, or unseen (the pool cannot be asked now)."""
    why: str
    """What is wrong with it, or whose it is, in words for people; "" where nothing is to say."""
    latest: bool
    """It is the one that a resume would take."""


class CodeView(TypedDict):
    """What was packed at submit."""

    digest: str
    workdir: str
    root: str
    num_files: int
    size_bytes: int
    commit: str | None
    branch: str | None
    remote: str | None
    dirty: bool
    diff: str | None
    """`git diff HEAD` of tracked files; null without git."""
    untracked: list[str]
    excluded: list[dict[str, Any]]
    """What was left out: {"path", "rule", "num_files", "size_bytes"}."""
    fault: str
    """Why nothing more than `digest` and `workdir` is known; "" where all is."""


class DifferenceView(TypedDict):
    """One dotted key under which things that are compared do not all have the same."""

    key: str
    values: list[Any]
    """One for each of them, in their order; null where one has no such key."""


class EventView(TypedDict):
    """One entry in a run's history."""

    seq: int
    time: float
    kind: str
    message: str
    data: dict[str, Any]


class RunDetail(RunSummary):
    """All that is known of one run: `gangline show RUN --json`."""

    spec: dict[str, Any]
    run_dir: str
    attempts: list[AttemptView]
    checkpoints: list[CheckpointView]
    code: CodeView | None
    events: list[EventView]
    metrics: dict[str, float | None]
    """Newest value of each metric of rank 0."""
    tokens_per_s: float | None
    client: dict[str, Any]
    """Who submitted, from which host, folder and command line."""
    backend: dict[str, str]
    """What people need to look at its newest launch themselves: `job`, `log`, commands to type; empty for `local`."""
    job_log: str
    """Of a run that is over and never had a rank: the end of what its job and its agents have written."""
    room: list[PoolPartView]
    """While it waits in the queue of its pool: what the parts that it may go to have free."""


class MetricBucket(TypedDict):
    """Values of one metric over a range of steps."""

    step: int
    """First step of the bucket."""
    last_step: int
    count: int
    min: float | None
    max: float | None
    mean: float | None


class MetricView(TypedDict):
    """One metric as a chart needs it."""

    name: str
    rank: int
    count: int
    buckets: list[MetricBucket]


class LogChunk(TypedDict):
    """A piece of one rank's log."""

    rank: int
    attempt: int
    offset: int
    next_offset: int
    size: int
    text: str
    """Bytes decoded as UTF-8, invalid ones replaced."""
    dropped_bytes: int
    """So many bytes of the log are gone here (its limit was reached); `text` is the line that says so."""
    complete: bool
    """True when the rank has ended and this piece reaches the end of its log."""


class LogHit(TypedDict):
    """A line that a search has found."""

    rank: int
    attempt: int
    offset: int
    """Where `text` begins in the log."""
    text: str
    """The line; of one that is drawn over with carriage returns, the state that matches; at most 4,000 bytes."""
    cut: bool
    """There is more of the line than `text` shows; the log has all of it."""
    time: float | None
    """When it had been written, at the latest, to a fifth of a second."""
    before: list[str]
    after: list[str]
    """Lines around it, as many as were asked for; none that another hit has told."""


class SearchEnd(TypedDict):
    """The last line of a search."""

    hits: int
    more: bool
    """There are more than `limit`."""
    timed_out: bool
    logs: int
    bytes: int
    """What was searched."""
    seconds: float


class StacksGroup(TypedDict):
    """Ranks that are in one place."""

    ranks: list[int]
    state: str
    """`runs`, `stopped`, `traced`, `blocked`, `ended`, `silent`."""
    what: str
    """What they are in: `all_reduce`, `time.sleep`; "" where only the line is known."""
    where: str
    """`train.py:41`."""
    waits: bool
    """For other ranks."""
    text: str


class StacksRank(TypedDict):
    """One rank, with every Python process of it."""

    rank: int
    node: int
    host: str
    pid: int | None
    state: str
    place: str
    processes: list[dict[str, Any]]
    """{"pid", "child", "how" (`faulthandler`, `py-spy` or ""), "note", "threads": [{"name", "frames": [{"file", "line",
    "function", "code"}]}]}; innermost frames first, the main thread last."""


class StacksView(TypedDict):
    """The stacks of a gang at one moment."""

    id: str
    attempt: int
    by: str
    time: float
    taken_s: float
    text: str
    """Who is where, in one sentence."""
    hint: str
    culprit: int | None
    """The rank that the others wait for, as far as the stacks tell."""
    silent_nodes: list[int]
    groups: list[StacksGroup]
    ranks: list[StacksRank]


class PoolPartView(TypedDict):
    """What a part of a pool (of Slurm a partition) has, and what all its users leave free of it now."""

    name: str
    is_usual: bool
    """Runs go there that name none."""
    nodes: int
    idle_nodes: int
    cpus: int
    free_cpus: int
    devices: int
    free_devices: int


class PoolView(TypedDict):
    """One configured backend."""

    name: str
    backend: str
    nodes: int
    ranks: int
    cpus: int
    memory_bytes: int
    devices: list[str]
    device_kind: str
    free_devices: list[str]
    free_cpus: int
    running: int
    queued: int
    avoided_nodes: int
    """Machines that launches avoid; see NodeHealthView."""
    warnings: list[str]
    """Machines that are used although much speaks against them."""
    state: str
    """`ready`, `untried` (not asked since the server started), `login_needed`, `host_key_changed`,
    `unreachable` or `removed`."""
    state_text: str
    """Why it cannot be reached, in the words of who said so."""
    command: str
    """What a person has to type so that it can be reached again; "" where nothing helps but time."""
    since: float | None
    jobs: int
    """Launches that its backend holds, those that wait there included."""
    parts: list[PoolPartView]
    """Of a pool with a queue of its own, as its scheduler said within the last two minutes; else empty."""


class PoolDetail(PoolView):
    """One pool with what is configured."""

    settings: dict[str, Any]
    """As in pools.yaml, without what is as by default; empty for `local`."""
    file: str
    login: list[str]
    """What a person types where the pool wants a password or a second factor; empty where none ever does."""


class PoolFileView(TypedDict):
    """What the server makes of pools.yaml."""

    path: str
    fault: str
    """What is wrong with it, or with pools of it; "" where nothing is."""


class FindingView(TypedDict):
    """One thing that was looked at when a pool was examined."""

    check: str
    verdict: str
    """`ok`, `warning`, `failed`, or `unchecked` where something else has to be put right first."""
    text: str
    fix: str
    """What to do, where something is wrong."""


class PoolJobView(TypedDict):
    """One job of Gangline's in a pool that has a queue of its own."""

    job: str
    state: str
    """In the words of the pool; "" where it does not list the job."""
    run: str
    launch: int
    since: float | None
    """When it started, or was submitted if it waits."""
    nodes: int | None
    standing: str
    """`followed`, `orphan`, `idle`, `stuck`, `never`, `missing` or `others`."""
    text: str
    """Why it stands so."""
    fix: str
    ended: bool
    """It was ended now."""


class NodeMarkView(TypedDict):
    """One attempt that ended with evidence against a machine."""

    time: float
    run: str
    attempt: int
    kind: str
    """`failed_check`, `shared_check`, `node_lost`, `hardware`, `network` or `blocked`."""
    detail: str


class NodeHealthView(TypedDict):
    """One machine of a pool, and why it stands as it does."""

    pool: str
    host: str
    state: str
    """`ok`, `suspect` (used), `avoided`, or `kept`: bad, but used, as the pool has too few others."""
    why: str
    forgotten_at: float | None
    """When its newest mark counts no more."""
    marks: list[NodeMarkView]
    """Oldest first."""


class ClearedView(TypedDict):
    """What was cleared of a machine."""

    host: str
    pools: list[str]
    """Where something was known against it."""


class SystemView(TypedDict):
    """What the agent of one node has sampled of its machine and ranks."""

    node: int
    host: str
    attempt: int
    samples: list[dict[str, Any]]
    """Oldest first; see docs/reference/run-directory.md."""


class HealthView(TypedDict):
    """Who answers."""

    version: str
    pid: int
    started: float
    home: str
    runs_live: int
    runs_queued: int
    rss_bytes: int | None
    warnings: list[str]
    """What people should know of how this server began: a damaged database, run folders that it cannot show."""


class ErrorView(TypedDict):
    """What happened, why, and what to do; docs/reference/exit-codes.md lists the codes."""

    code: str
    what: str
    why: str
    fix: str


class ErrorBody(TypedDict):
    """Body of every answer that is not a success."""

    error: ErrorView
