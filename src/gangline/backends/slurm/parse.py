"""What Slurm's commands are asked, and what their answers say. Pure.

Text with fixed columns, or a separator that no name holds, is asked for rather than JSON: `squeue --json` ignores its
filters up to 22.05 and weighs five times as much, `sacct --json` of 22.05 says 0 of a job that ended with 7. JSON is
read where text makes no sense any more (`Form`). An answer that is empty, cut off or an error is never the end of
anything: it raises, or says that a job is not listed, which is something else.

Imports `gangline.domain` and its neighbours alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum

from gangline.backends.slurm.jsonjobs import Unreadable, parse_json_jobs
from gangline.backends.slurm.link import Ran
from gangline.backends.slurm.records import (
    OOM_SIGNAL,
    JobRecord,
    flag_in,
    number_in,
    pair_in,
    parse_status,
    said,
    time_in,
)
from gangline.backends.slurm.states import parse_state
from gangline.domain.errors import Transient

__all__ = [
    "Form",
    "NoAccounting",
    "parse_queue",
    "parse_sacct",
    "parse_scontrol",
    "parse_test_only",
    "render_own_jobs",
    "render_queue",
    "render_sacct",
    "render_scontrol",
    "render_test_only",
]


class NoAccounting(Transient):
    """The cluster keeps no accounts, or not for us."""


class Form(Enum):
    """How a command is asked to answer."""

    TEXT = "text"
    JSON = "json"


# squeue

_COLUMNS: Sequence[tuple[str, int]] = (
    ("JobID", 20),
    ("State", 24),
    ("RestartCnt", 10),
    ("Requeue", 8),
    ("exit_code", 12),
    ("SubmitTime", 24),
    ("StartTime", 24),
    ("EndTime", 24),
    ("NumNodes", 10),
    ("Reason", 160),
    ("NodeList", 160),
    ("Name", 120),
    ("Comment", 160),
)
"""Widths cut and pad each column, in bytes: what people choose themselves stands last, where it can shift nothing."""
_NEEDED = 44
"""A line that is no longer than its id and state says nothing."""
_NO_FILTERS = tuple(
    word
    for name in ("ACCOUNT", "ARRAY", "LICENSES", "NAMES", "PARTITION", "QOS", "RESERVATION", "SORT", "STATES", "USERS")
    for word in ("-u", f"SQUEUE_{name}")
)
"""What people set in their profiles filters what `squeue` tells: a job would seem to be gone."""
_NO_END = "NONE"
_SECONDS = "SLURM_TIME_FORMAT=%s"
_STATE_WORD = re.compile(r"[A-Z][A-Z_]+\+?")
_MISUNDERSTOOD = re.compile(r"Invalid job format|Invalid field requested|[Uu]nrecognized option|invalid option")
_IN_JSON = re.compile(r"^\s*\{\s*$|^\s*\{ ?\"\w+\":", re.MULTILINE)
_INVALID = "Invalid job id specified"
_ERROR = re.compile(r"^\s*(?:\S*(?:squeue|sacct|scontrol)\S*: )?(?:error|fatal): |slurm_\w+ error: ", re.MULTILINE)


def render_queue(jobs: Sequence[str], form: Form = Form.TEXT) -> tuple[str, ...]:
    """Ask for all these jobs at once, in whatever state they are."""
    ask = ("--all", "--states=all", f"--jobs={','.join(jobs)}")
    return _squeue(ask, form)


def render_own_jobs(user: str, form: Form = Form.TEXT) -> tuple[str, ...]:
    """Ask for all jobs of a user, in whatever state they are."""
    return _squeue(("--all", "--states=all", f"--user={user}"), form)


def _squeue(ask: Sequence[str], form: Form) -> tuple[str, ...]:
    if form is Form.JSON:
        return ("env", *_NO_FILTERS, "squeue", *ask, "--json")
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
    return ("env", *_NO_FILTERS, _SECONDS, "squeue", "--noheader", *ask, f"--Format={columns}")


def parse_queue(ran: Ran, jobs: Sequence[str] | None = None) -> dict[str, JobRecord]:
    """What `squeue` lists, by job; jobs that it does not list are absent, which is no end by itself.

    Args:
        jobs: what was asked for; None: all of a user.
    Raises:
        Unreadable: it answers, but not with what it was asked for.
        Transient: it has not answered, or its answer is cut off.
    """
    if ran.rc != 0 and _INVALID in ran.err and jobs is not None:
        return {}
    records = _records(ran, "squeue", _parse_columns)
    asked = None if jobs is None else frozenset(jobs)
    return {record.job: record for record in records if asked is None or record.job in asked}


def _parse_columns(line: str) -> JobRecord | None:
    """One line; None for what is no job, as banners and warnings."""
    values: dict[str, str] = {}
    at = 0
    for name, width in _COLUMNS:
        values[name] = line[at : at + width].strip()
        at += width
    if not values["JobID"].isdigit() or not _STATE_WORD.fullmatch(values["State"]) or len(line) <= _NEEDED:
        return None
    exit_code, signal = parse_status(number_in(values["exit_code"]))
    return JobRecord(
        job=values["JobID"],
        state=parse_state(values["State"]),
        reason=said(values["Reason"]),
        name=said(values["Name"]),
        comment=said(values["Comment"]),
        restarts=number_in(values["RestartCnt"]),
        requeues=flag_in(values["Requeue"]),
        exit_code=exit_code,
        signal=signal,
        submitted=time_in(values["SubmitTime"]),
        start=time_in(values["StartTime"]),
        end=math.inf if values["EndTime"] == _NO_END else time_in(values["EndTime"]),
        num_nodes=number_in(values["NumNodes"]),
        nodes=said(values["NodeList"]),
    )


# sacct

_FIELDS = (
    "JobIDRaw",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "NodeList",
    "JobName",
    "Comment",
)
_SEPARATOR = "\x1f"
_OFF = re.compile(
    r"accounting storage is disabled|accounting_storage/(?:none|filetxt)|not enabled|not configured", re.IGNORECASE
)


def render_sacct(jobs: Sequence[str], form: Form = Form.TEXT) -> tuple[str, ...]:
    """Ask for all lives of these jobs: one that Slurm has put back into its queue has several."""
    ask = ("--duplicates", "--allocations", f"--jobs={','.join(jobs)}")
    if form is Form.JSON:
        return ("sacct", *ask, "--json")
    form_words = ("--noheader", "--parsable2", f"--delimiter={_SEPARATOR}", f"--format={','.join(_FIELDS)}")
    return ("env", _SECONDS, "sacct", *ask, *form_words)


def parse_sacct(ran: Ran, jobs: Sequence[str]) -> dict[str, list[JobRecord]]:
    """What accounting knows, by job, oldest life first. A job without a record is not in it.

    Raises:
        NoAccounting: there is none, and there will be none.
        Unreadable, Transient: as `parse_queue`.
    """
    if _OFF.search(ran.err) or _OFF.search(ran.out):
        raise NoAccounting("This cluster keeps no accounts", why=_words(ran))
    records = _records(ran, "sacct", _parse_account)
    found: dict[str, list[JobRecord]] = {}
    for record in records:
        if record.job in jobs:
            found.setdefault(record.job, []).append(record)
    for lives in found.values():
        lives.sort(key=lambda record: record.submitted or 0.0)
    return found


def _parse_account(line: str) -> JobRecord | None:
    parts = line.split(_SEPARATOR, len(_FIELDS) - 1)
    if len(parts) != len(_FIELDS) or not parts[0].isdigit():
        return None
    values = dict(zip(_FIELDS, parts, strict=True))
    state = parse_state(values["State"])
    exit_code, signal = pair_in(values["ExitCode"])
    _, derived = pair_in(values["DerivedExitCode"])
    return JobRecord(
        job=values["JobIDRaw"],
        state=state,
        name=values["JobName"],
        comment=values["Comment"] or None,  # kept only where the site has it so
        exit_code=exit_code,
        signal=signal,
        out_of_memory=OOM_SIGNAL in {signal, derived},
        submitted=time_in(values["Submit"]),
        start=time_in(values["Start"]),
        end=time_in(values["End"]),
        nodes=said(values["NodeList"]),
        by=state.by,
    )


# scontrol

_MOST_AT_ONCE = 50


def render_scontrol(jobs: Sequence[str]) -> tuple[tuple[str, ...], bytes]:
    """Ask the controller for each of these jobs (the first 50), in one command; the second part is its stdin."""
    ask = "".join(f"show job {job}\n" for job in jobs[:_MOST_AT_ONCE])
    return ("env", _SECONDS, "scontrol", "--oneliner"), ask.encode()


def parse_scontrol(ran: Ran, jobs: Sequence[str]) -> tuple[dict[str, JobRecord], frozenset[str]]:
    """Jobs that the controller knows, and those of which it says that it knows them not.

    It does not say which id each error is about: errors count only where there is one for each job that is missing,
    and no other.

    Raises:
        Transient: it has not answered.
    """
    asked = jobs[:_MOST_AT_ONCE]
    if ran.rc is None:
        raise Transient("scontrol has not answered in time")
    found = {record.job: record for line in ran.out.splitlines() if (record := _parse_pairs(line)) is not None}
    missing = [job for job in asked if job not in found]
    refusals = ran.err.count(_INVALID)
    if _ERROR.sub("", ran.err).strip() and refusals == 0 and missing:
        raise Transient("scontrol does not say anything of these jobs", why=_words(ran))
    errors = len(_ERROR.findall(ran.err))
    is_sure = refusals == len(missing) and errors <= refusals
    return {job: found[job] for job in asked if job in found}, frozenset(missing if is_sure else ())


def _parse_pairs(line: str) -> JobRecord | None:
    """A line of `scontrol --oneliner show job`."""
    at = line.find("JobId=")
    if at < 0 or "JobState=" not in line:
        return None
    text = line[at:]
    name = re.search(r" JobName=(.*?) UserId=", text)
    rest = text[name.end() :] if name else text
    pairs = re.findall(r"(?<!\S)([A-Z]\w*)=(\S*)", rest)
    values = dict(reversed(pairs))  # the first of a name counts: what follows may be text of people
    reason = re.search(r"(?<!\S)Reason=(.*?) (?:FailedNode|Dependency|Requeue|Restarts)=", rest)
    comment = re.search(r"(?<!\S)Comment=(.*?)\s+(?:Std(?:Err|In|Out)|Power|[A-Z]\w*)=", rest)
    exit_code, signal = pair_in(values.get("ExitCode", ""))
    job = re.match(r"JobId=(\d+)", text)
    if job is None:
        return None
    return JobRecord(
        job=job[1],
        state=parse_state(values.get("JobState", "")),
        reason=said(reason[1] if reason else values.get("Reason", "")),
        name=name[1] if name else None,
        comment=comment[1] if comment else None,
        restarts=number_in(values.get("Restarts", "")),
        requeues=flag_in(values.get("Requeue", "")),
        exit_code=exit_code,
        signal=signal,
        submitted=time_in(values.get("SubmitTime", "")),
        start=time_in(values.get("StartTime", "")),
        end=time_in(values.get("EndTime", "")),
        num_nodes=number_in(values.get("NumNodes", "").partition("-")[0]),
        nodes=said(values.get("NodeList", "")),
    )


# sbatch --test-only

_STARTS = re.compile(r"sbatch: Job \d+ to start at (\d+) using")


def render_test_only() -> tuple[str, ...]:
    """Ask when the script on stdin would start, without handing it over."""
    return ("env", _SECONDS, "sbatch", "--test-only")


def parse_test_only(ran: Ran) -> float | None:
    """When the job would start, by the cluster's clock; None: Slurm does not say. Times are asked for in seconds."""
    found = _STARTS.search(ran.err) or _STARTS.search(ran.out)
    return None if found is None else float(found[1])


# What they have in common


def _records(ran: Ran, command: str, parse_line: Callable[[str], JobRecord | None]) -> list[JobRecord]:
    """The jobs of an answer, whatever else sites print around it.

    Raises:
        Unreadable, Transient: it is no answer.
    """
    if ran.rc is None:
        raise Transient(f"{command} has not answered in time", why=_words(ran))
    if _MISUNDERSTOOD.search(ran.err):
        raise Unreadable(f"{command} does not understand what it is asked", why=_words(ran))
    if ran.rc != 0:
        raise Transient(f"{command} does not answer", why=_words(ran))
    if _IN_JSON.search(ran.out):
        return parse_json_jobs(ran.out)
    if ran.out and not ran.out.endswith("\n"):
        raise Transient(f"The answer of {command} is cut off", why=ran.out[-80:])
    records = [record for line in ran.out.splitlines() if (record := parse_line(line)) is not None]
    if not records and _ERROR.search(ran.err):
        raise Transient(f"{command} does not answer", why=_words(ran))
    return records


def _words(ran: Ran) -> str:
    """The last line that says something, mostly an error."""
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"it ended with {ran.rc} and said nothing"])[-1][:300]
