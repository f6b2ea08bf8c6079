"""From a gang to the files that Slurm is given: the batch script, and what each node of it runs. Pure.

`job.sh` asks for the machines and starts one task a node; each task runs `node.sh`, which prepares its node and becomes
the agent. Set-up lines are the only shell that is not ours: `eval` keeps each of them to itself, whatever it holds.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangline.agent.site import EXIT_UNNEEDED
from gangline.backends.slurm.options import FLAGS, quote_value
from gangline.backends.slurm.tokens import Token, job_name
from gangline.domain.gang import GangSpec
from gangline.domain.naming import printable
from gangline.domain.spec import SlurmOptions

__all__ = [
    "EXIT_CODES",
    "EXIT_NO_PYTHON",
    "EXIT_SETUP",
    "EXIT_UNSEEN",
    "JobTerms",
    "decide_cpus_per_node",
    "render_job",
    "render_node",
    "render_shell",
]

EXIT_UNSEEN = 66
EXIT_SETUP = 67
EXIT_NO_PYTHON = 69
EXIT_CODES: Mapping[int, str] = {
    EXIT_UNSEEN: "a node does not see the pool's work folder",
    EXIT_SETUP: "a set-up line failed",
    EXIT_NO_PYTHON: "the interpreter of the agents is not on a node",
}
"""How tasks end that never became an agent; the line in the job's log says more."""

_NOT_PASSED_ON = frozenset(
    {"requeue", "error", "input", "parsable", "quiet", "verbose", "wait", "test-only", "help", "usage", "wrap"}
)
"""Of an existing script: what would be at odds with how Gangline submits and follows it."""
_MINUTE_S = 60
_HOUR_MIN = 60
_DAY_MIN = 24 * 60
_MIB = 1 << 20
_LONGEST_SIGNAL_S = 65_535
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What of a job does not follow from its gang. Paths are those of the cluster."""

    run_dir: str
    agent: str
    """The agent's zipapp."""
    python: str
    """The agent's interpreter."""
    token: Token
    cpus_per_node: int = 0
    """Where the run reserves none; 0: one a rank."""
    env: Mapping[str, str] = field(default_factory=dict)
    await_s: int = 0
    """How long agents wait to be told what to start: the job waits for the end of the launch before its own."""

    def launch_dir(self) -> str:
        return f"{self.run_dir}/launches/{self.token.launch:03d}"


def render_job(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> str:
    """The batch script.

    Args:
        options: merged and checked.
    """
    asked = _lines(gang, options, terms) if options.script is None else _lines_of_script(gang, options, terms)
    lines = [f"#SBATCH --{name}{'' if value is None else f'={value}'}" for name, value in asked]
    shown = printable(gang.name)[:_SHOWN_CHARS]
    start = _START if options.script is None else _START_SCRIPT
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Run {gang.run_id} of Gangline, launch {gang.launch}: {shown}",
            *lines,
            "",
            f"launch={shlex.quote(terms.launch_dir())}",
            'echo "$SLURM_JOB_ID" 2>/dev/null >"$launch/job.id"',
            *_end_of_time(gang),
            f'export GANGLINE_NOTICE_S={_notice_s(gang)} GANGLINE_NODES="$SLURM_JOB_NUM_NODES" GANGLINE_TELL=run',
            f"look={shlex.quote(_LOOK)}",
            *([f"export GANGLINE_AWAIT_S={terms.await_s}"] if terms.await_s else []),
            start.format(srun=_srun_options(gang)),
            *([f'[ "$code" = {EXIT_UNNEEDED} ] && exit 0'] if terms.await_s else []),
            _LEAVE_MARK,
            "",
        ]
    )


def render_node(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> str:
    """What each node runs; it ends as the agent."""
    profile = [_PROFILE] if options.setup else []
    setup = [f"eval {shlex.quote(line)} || failed $? {shlex.quote(line)}" for line in options.setup]
    arguments = ["-I", "-S", terms.agent, "agent", terms.run_dir, "--launch", str(gang.launch)]
    return "\n".join(
        [
            f"launch={shlex.quote(terms.launch_dir())}",
            f"python={shlex.quote(terms.python)}",
            _OWN_LOG,
            *profile,
            *(f"export {name}={shlex.quote(value)}" for name, value in sorted(terms.env.items())),
            *([_SETUP] if setup else []),
            *setup,
            _FIND_PYTHON,
            f'exec "$python" {shlex.join(arguments)} --node "$SLURM_PROCID" 3>&-',
            "",
        ]
    )


def render_shell(gang: GangSpec, terms: JobTerms) -> str:
    """What `gangline shell` runs as a step of the job, with the number of a node: a shell beside a rank of it.

    It runs on the interpreter of that node's agent, which set-up lines may have brought.
    """
    arguments = ["-I", "-S", terms.agent, "shell", terms.run_dir, "--launch", str(gang.launch)]
    return (
        f'launch={shlex.quote(terms.launch_dir())}\n{_FIND_AGENT}\nexec "$python" {shlex.join(arguments)} --node "$@"\n'
    )


# A file that was just written may take a moment to be seen through a network file system.
_LOOK = f"""\
for pause in 1 2 3 4 5; do
  [ -r "$1/node.sh" ] && exec /bin/bash "$1/node.sh"
  sleep "$pause"
done
echo "gangline: $SLURMD_NODENAME does not see $1: the work folder of the pool is not mounted there" >&2
exit {EXIT_UNSEEN}"""

# A cancelled job's script gets the signal, too: srun passes it on, and what follows is still to be run.
_START = """\
trap : TERM
srun {srun} /bin/bash -c "$look" gangline "$launch" </dev/null
code=$?"""

# An existing script starts its own steps: the agent is on the first node alone, and gets the signals of the script.
_START_SCRIPT = """\
/bin/bash -c "$look" gangline "$launch" </dev/null &
agent=$!
for name in TERM HUP USR1 USR2 URG; do trap "kill -$name $agent 2>/dev/null" "$name"; done
while wait "$agent"; code=$?; kill -0 "$agent" 2>/dev/null; do :; done"""

# How it ended is there for those who find the job gone from Slurm, and no accounts kept.
_LEAVE_MARK = """\
mark="$code ${SLURM_RESTART_COUNT:-0} $(date +%s)"
(echo "$mark" >"$launch/job.exit.new" && mv "$launch/job.exit.new" "$launch/job.exit") 2>/dev/null
exit "$code\""""

_OWN_LOG = """\
log=$launch/node-$(printf %03d "$SLURM_PROCID").log
exec 3>&2
(umask 077 && : >>"$log") && exec >>"$log" 2>&1
fail() {
  echo "gangline: node $SLURM_PROCID ($SLURMD_NODENAME): $2" | tee /dev/fd/3 >&2
  exit "$1"
}"""

_PROFILE = "[ -r /etc/profile ] && . /etc/profile"

_SETUP = f"""\
failed() {{
  fail {EXIT_SETUP} "the set-up line \\`$2\\` failed with exit code $1"
}}"""

_FIND_PYTHON = f"""\
command -v "$python" >/dev/null || fail {EXIT_NO_PYTHON} "there is no interpreter $python for the agent\""""

_FIND_AGENT = """\
pid=$(cat "$launch/node-$(printf %03d "$1").lock" 2>/dev/null)
python=$(readlink "/proc/${pid:-none}/exe") || {
  echo "gangline: node $1 of this run does not run any more: no agent of it lives on $(hostname)" >&2
  exit 75
}"""


def _lines(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> Iterator[tuple[str, str | None]]:
    """Options of sbatch by name; None: it takes no value."""
    yield "job-name", job_name(gang.run_id, gang.launch)
    yield "comment", quote_value(str(terms.token))
    yield "chdir", quote_value(terms.run_dir)
    yield "output", quote_value(f"{terms.launch_dir()}/job.log".replace("%", "%%"))
    yield "open-mode", "append"
    if _is_elastic(gang):  # with a number of tasks, Slurm would be content with the fewest nodes
        yield "nodes", f"{gang.min_nodes}-{gang.nodes}"
    else:
        yield "nodes", str(gang.nodes)
        yield "ntasks-per-node", "1"
    yield from _resources(gang, options, terms)
    if gang.time_limit_s is not None:
        yield "time", render_time(gang.time_limit_s)
    yield "signal", f"URG@{min(math.ceil(_notice_s(gang)), _LONGEST_SIGNAL_S)}"
    yield "no-requeue", None
    if _is_elastic(gang):
        yield "no-kill", None
    yield from _wishes(gang, options)


def _lines_of_script(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> Iterator[tuple[str, str | None]]:
    """What an existing script asks for, but for what was asked for at submit, and what Gangline has to set."""
    theirs = {name: quote_value(value) if value else None for name, value in options.directives.items()}
    near_end = {} if "signal" in theirs else {"signal": f"B:URG@{min(_notice_s(gang), _LONGEST_SIGNAL_S)}"}
    ours: dict[str, str | None] = {
        "job-name": job_name(gang.run_id, gang.launch),
        "comment": quote_value(str(terms.token)),
        "chdir": quote_value(terms.run_dir),
        "output": quote_value(f"{terms.launch_dir()}/job.log".replace("%", "%%")),
        "open-mode": "append",
        "no-requeue": None,
        **near_end,
        **_asked_anew(gang, options),
        **dict(_wishes(gang, options)),
    }
    yield from ours.items()
    yield from ((name, value) for name, value in theirs.items() if name not in ours and name not in _NOT_PASSED_ON)


def _asked_anew(gang: GangSpec, options: SlurmOptions) -> dict[str, str | None]:
    """Resources of an existing script that were named at submit."""
    asked: dict[str, str | None] = {}
    if gang.cpus_per_node:
        asked["cpus-per-task"] = str(gang.cpus_per_node)
    if gang.memory_bytes is not None:
        asked["mem"] = f"{-(-gang.memory_bytes // _MIB)}M"
    if gang.gpus_per_node and options.gres is None:
        asked["gpus-per-node"] = str(gang.gpus_per_node)
    if gang.time_limit_s is not None:
        asked["time"] = render_time(gang.time_limit_s)
    if options.exclusive:
        asked["exclusive"] = None
    return asked


def decide_cpus_per_node(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> int:
    """How many Slurm is asked for; 0: none by name."""
    if gang.cpus_per_node or options.script is not None or "cpus-per-gpu" in options.options:
        return gang.cpus_per_node
    return max(terms.cpus_per_node, gang.procs_per_node)


def _resources(gang: GangSpec, options: SlurmOptions, terms: JobTerms) -> Iterator[tuple[str, str | None]]:
    if "cpus-per-gpu" not in options.options:
        yield "cpus-per-task", str(decide_cpus_per_node(gang, options, terms))
    if gang.memory_bytes is not None:
        yield "mem", f"{-(-gang.memory_bytes // _MIB)}M"
    elif options.exclusive and not options.options.keys() & {"mem-per-cpu", "mem-per-gpu"}:
        yield "mem", "0"
    if options.exclusive:
        yield "exclusive", None
    if options.gres is None and gang.gpus_per_node:
        yield "gpus-per-node", str(gang.gpus_per_node)


def _wishes(gang: GangSpec, options: SlurmOptions) -> Iterator[tuple[str, str | None]]:
    for name in FLAGS:
        value = getattr(options, name)
        if name == "exclude":
            value = ",".join(filter(None, [value, *gang.exclude_hosts])) or None
        if value is not None:
            yield name, quote_value(value)
        if name == "dependency" and value is not None:
            yield "kill-on-invalid-dep", "yes"
    for name, value in sorted(options.options.items()):
        yield name, quote_value(value) if value else None


def render_time(time_s: float) -> str:
    """Slurm's `days-hours:minutes:seconds`, up to the next minute, which is how fine Slurm is."""
    minutes = max(1, math.ceil(time_s / _MINUTE_S))
    days, rest = divmod(minutes, _DAY_MIN)
    return f"{days}-{rest // _HOUR_MIN:02d}:{rest % _HOUR_MIN:02d}:00"


def _end_of_time(gang: GangSpec) -> list[str]:
    """When Slurm takes the machines back, which older versions don't tell a job."""
    if gang.time_limit_s is not None:
        asked_s = max(1, math.ceil(gang.time_limit_s / _MINUTE_S)) * _MINUTE_S
        ask = f"$(($(date +%s) + {asked_s}))"
        return [f'export GANGLINE_JOB_END="${{SLURM_JOB_END_TIME:-{ask}}}"']
    return [
        'if [ -z "$SLURM_JOB_END_TIME" ]; then',
        '  end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null </dev/null)',
        '  SLURM_JOB_END_TIME=$(date -d "${end:-unknown}" +%s 2>/dev/null)',
        "fi",
        'export GANGLINE_JOB_END="$SLURM_JOB_END_TIME"',
    ]


def _notice_s(gang: GangSpec) -> int:
    return math.ceil(gang.notice_s + gang.grace_s)


def _srun_options(gang: GangSpec) -> str:
    """One agent a node, on all that the job has there. The end of one leaves the others to the leader."""
    nodes = '"$SLURM_JOB_NUM_NODES"' if _is_elastic(gang) else str(gang.nodes)
    options = [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
    ]
    if _is_elastic(gang):
        options.append("--no-kill")
    return " ".join(options)


def _is_elastic(gang: GangSpec) -> bool:
    """Slurm gives it as many nodes as there are, and it goes on when some are lost."""
    return gang.min_nodes is not None and gang.min_nodes < gang.nodes
