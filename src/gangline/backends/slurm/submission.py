"""What `sbatch` answers: the id of a job, or why there is none, as an error that control can act on. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.backends.slurm.link import Ran
from gangline.domain.errors import BackendError, NoCapacity, Rejected, Transient

__all__ = ["Listed", "Unsure", "parse_job_id", "parse_listing", "parse_refusal", "parse_test"]

_PARSABLE = re.compile(r"(\d{1,10})(;[\w.-]+)?")
_SPOKEN = re.compile(r"Submitted batch job (\d{1,10})( on cluster [\w.-]+)?")
_ERROR = re.compile(r"^(?:sbatch: )?(?:error|fatal): *", re.MULTILINE)
_MOST_WORDS = 600
_SIGNALLED = range(129, 193)
"""A shell adds to 128 the signal that has ended a command. sbatch ends with 255 where it does not know an option."""

_FULL = re.compile(
    r"(QOS|Assoc)\w*Submit\w*Limit|temporarily unable to accept job|Job violates .*job submit limit|"
    r"Resource temporarily unavailable|maximum job count",
    re.IGNORECASE,
)
_OTHER_LIMIT = re.compile(r"\b(QOS|Assoc)(?!\w*Submit)\w*(Limit|PerUser|PerJob|PerAccount|PerNode)\b")
"""A limit that waiting does not help against, where Slurm is set to refuse (DenyOnLimit)."""
_NOT_REACHED = re.compile(
    r"Unable to contact slurm controller|connect failure|Connection refused|backup controller|standby mode|"
    r"Unable to establish config|Protocol authentication error|Invalid authentication credential|munge",
    re.IGNORECASE,
)
"""The controller has not seen the request."""
_NOT_ANSWERED = re.compile(
    r"Socket timed out|Zero Bytes were transmitted|Transport endpoint|Unexpected message|Connection reset|"
    r"Communication (connection|shutdown)|Message (receive|send) failure|System call interrupted|timed out",
    re.IGNORECASE,
)
"""It may have seen it."""

_FIXES: Sequence[tuple[str, str]] = (
    (
        r"account/partition|Invalid account|specify an account",
        "Give --account one of yours: `sacctmgr show assoc user=$USER format=account,partition,qos` lists them.",
    ),
    (r"partition", "Give --partition one of the cluster's: `sinfo` lists them."),
    (
        r"qos",
        "Give --qos one that your account may use: `sacctmgr show assoc user=$USER format=account,qos` lists them.",
    ),
    (
        r"node configuration is not available|Node count specification|processors requested|memory specification",
        "Lower --gpus-per-node, --cpus-per-rank, --memory or --nodes, or choose another --partition.",
    ),
    (r"time limit", "Give --time-limit less, or choose another --partition or --qos."),
    (r"feature|constraint", "Correct --constraint: `sinfo --format='%N %f'` lists the features of nodes."),
    (r"gres|generic resource", "Correct --gpus-per-node or --gres: `sinfo --format='%N %G'` lists what nodes have."),
    (r"dependency", "Correct --dependency."),
    (r"reservation", "Correct --reservation: `scontrol show reservation` lists those that there are."),
    (r"node name", "Correct --nodelist or --exclude: `sinfo --Node` lists the nodes."),
    (
        r"unrecognized option|invalid option|invalid argument",
        "Correct --sbatch-option, or the #SBATCH lines of your script; `sbatch --help` lists the options.",
    ),
    (r"not found|No such file", "`gangline pools doctor` says what the pool lacks."),
    (r"limit|policy", "Ask for less, or use another --qos or --account."),
)


_FOR_GOOD = re.compile(
    r"account|partition (name )?specified|qos|feature|reservation|node name|(unrecognized|invalid|ambiguous) option|"
    r"option .* (doesn't allow|requires) an argument|gres\b.*specification|Invalid generic resource",
    re.IGNORECASE,
)
"""What sbatch would say, too. Of nodes that are only drained `--test-only` says that there are none like that."""


class Unsure(Transient):
    """There may be a job all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One job as `squeue` or `sacct` lists it."""

    job: str
    state: str
    comment: str
    work_dir: str


def parse_job_id(out: str) -> str | None:
    """The id in what `sbatch --parsable` has printed, whatever a login shell printed around it; None: not sure."""
    lines = [line.strip() for line in out.splitlines()]
    for pattern in (_SPOKEN, _PARSABLE):
        found = [match[1] for line in lines if (match := pattern.fullmatch(line))]
        if found:
            return found[0] if len(set(found)) == 1 else None
    return None


def parse_refusal(ran: Ran) -> BackendError:
    """What it means that `sbatch` has not told an id.

    Returns:
        `Unsure` where there may be a job; any other class says that there is none.
    """
    words = _words(ran)
    if ran.rc is None:
        return Unsure("sbatch gave no answer in time", why=words)
    if ran.rc <= 0 or ran.rc in _SIGNALLED:
        what = "sbatch named no job" if ran.rc == 0 else "sbatch was killed"
        return Unsure(what, why=words or f"It ended with {ran.rc} and said nothing")
    if _NOT_ANSWERED.search(words):
        return Unsure("Slurm did not say whether it took the job", why=words)
    if _NOT_REACHED.search(words):
        return Transient("Slurm's controller was not reached", why=words)
    return _refused(words or f"sbatch ended with {ran.rc}")


def parse_test(ran: Ran) -> str:
    """What Slurm says of a job that it was only asked about, such as when it would start; "" where that is not sure.

    Raises:
        Rejected: it would not take the job.
    """
    if ran.rc == 0:
        said = [line for line in (ran.err + ran.out).splitlines() if line.startswith("sbatch: Job ")]
        return said[-1].removeprefix("sbatch: ") if said else ""
    refusal = parse_refusal(ran)
    if isinstance(refusal, Rejected) and _FOR_GOOD.search(refusal.why):
        raise refusal
    return ""


def parse_listing(out: str, work_dir: str) -> list[Listed]:
    """Jobs in lines of `id|state|comment|working folder`, the last of which is known: comments may hold anything."""
    found = []
    for line in out.splitlines():
        job, _, rest = line.strip().partition("|")
        state, _, rest = rest.partition("|")
        if job.isdigit() and rest.endswith(f"|{work_dir}"):
            comment = rest[: -len(work_dir) - 1]
            found.append(Listed(job=job, state=state.split()[0] if state else "", comment=comment, work_dir=work_dir))
    return found


def _refused(words: str) -> BackendError:
    if _FULL.search(words) and not _OTHER_LIMIT.search(words):
        return NoCapacity("Slurm takes no more jobs of yours now", why=words)
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, words, re.IGNORECASE)), "")
    return Rejected("Slurm refuses the job", why=words, fix=fix)


def _words(ran: Ran) -> str:
    """Slurm's own words, on one line."""
    text = _ERROR.sub("", ran.err.strip() or ran.out.strip())
    lines = [line.strip().removeprefix("sbatch: ") for line in text.splitlines() if line.strip()]
    return "; ".join(line.rstrip(".") for line in lines)[:_MOST_WORDS]
