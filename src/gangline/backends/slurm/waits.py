"""Why a Slurm job waits: each word of squeue's REASON column as a sentence, with what to do.

Written from the manual page of squeue and from what clusters print, 20.11 to 25.x. Standard library only.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["WAITS", "Wait", "explain_wait", "render_clock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a job waits."""

    word: str
    """Slurm's own."""
    text: str
    """In plain words, without a full stop."""
    fix: str = ""
    """What to do, as a sentence; "" where time alone helps."""
    never: bool = False
    """As things are, it will never start."""


def _w(text: str, fix: str = "", *, never: bool = False) -> tuple[str, str, bool]:
    return text, fix, never


_HELD_FIX = "Look at its log, then `scontrol release JOB`, or stop the run."
_LIMIT_FIX = (
    "Ask for less, or use another --qos or --account; `sacctmgr show qos` and `sacctmgr show assoc` have the limits."
)
_RIGHTS_FIX = "Use another --account, --qos or --partition; `sacctmgr show assoc user=$USER` lists yours."

WAITS: Mapping[str, tuple[str, str, bool]] = {
    "None": _w("Slurm has not looked at it yet"),
    "Priority": _w("jobs of higher priority come first"),
    "Resources": _w("there is no room for it now"),
    "Dependency": _w("jobs that it depends on have not ended yet"),
    "DependencyNeverSatisfied": _w(
        "a job that it depends on has ended in a way that does not allow it",
        "Stop the run, and submit it without.",
        never=True,
    ),
    "BeginTime": _w("it may not begin before a certain time; after a requeue Slurm pauses for about two minutes"),
    "JobHeldUser": _w("somebody with the rights of its owner holds it", "`scontrol release JOB` lets it go."),
    "JobHeldAdmin": _w("an administrator holds it", "Ask the administrators of the cluster to release it."),
    "JobHoldMaxRequeue": _w("it was put back into the queue too often, and is held", _HELD_FIX, never=True),
    "SchedDefer": _w("it may not start at once, but waits for Slurm's next round"),
    "Licenses": _w("licenses that it needs are in use"),
    "Reservation": _w("its reservation has not begun, or is full"),
    "ReservationDeleted": _w(
        "its reservation was deleted", "Submit it with another --reservation, or none.", never=True
    ),
    "ReservationInvalid": _w("its reservation is not valid any more", "Use another --reservation.", never=True),
    "ReqNodeNotAvail": _w(
        "nodes that it needs are down, drained or reserved, maybe for maintenance that its time limit would reach into",
        "A shorter --time-limit may let it start before; `sinfo -R` and `scontrol show reservation` say why.",
    ),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": _w(
        "nodes that it needs are down, drained or kept for partitions of higher priority",
        "`sinfo -R` says why nodes are down.",
    ),
    "PartitionNodeLimit": _w(
        "it asks for more or fewer nodes than its partition allows", "Change --nodes or --partition.", never=True
    ),
    "PartitionTimeLimit": _w(
        "its time limit is above that of its partition", "Lower --time-limit, or use another --partition.", never=True
    ),
    "PartitionConfig": _w(
        "its partition has no nodes that can do what it asks for",
        "Ask for less per node, or use another --partition.",
        never=True,
    ),
    "PartitionDown": _w("its partition is down", "Ask the administrators, or use another --partition."),
    "PartitionInactive": _w(
        "its partition takes jobs, but starts none", "Ask the administrators, or use another --partition."
    ),
    "BadConstraints": _w("no node has what it asks for", "Change --constraint, --gres or its size.", never=True),
    "AccountNotAllowed": _w("its account may not use this partition or QOS", _RIGHTS_FIX, never=True),
    "QOSNotAllowed": _w("its QOS may not be used in this partition or by this account", _RIGHTS_FIX, never=True),
    "InvalidAccount": _w("its account is not valid", _RIGHTS_FIX, never=True),
    "InvalidQOS": _w("its QOS is not valid", _RIGHTS_FIX, never=True),
    "AccountingPolicy": _w("a limit of its account or QOS holds it back"),
    "QOSUsageThreshold": _w(
        "its account has used more than the QOS lets it begin with",
        "Use another --qos, or wait for the usage to decay.",
    ),
    "QOSJobLimit": _w("as many jobs as its QOS allows are running"),
    "QOSResourceLimit": _w("the QOS has no more resources to give now"),
    "QOSTimeLimit": _w(
        "its time limit is above that of its QOS", "Lower --time-limit, or use another --qos.", never=True
    ),
    "AssociationJobLimit": _w("as many jobs as its account allows are running"),
    "AssociationResourceLimit": _w("its account has no more resources to give now"),
    "AssociationTimeLimit": _w("its time limit is above that of its account", "Lower --time-limit.", never=True),
    "MaxMemPerLimit": _w(
        "it asks for more memory per CPU or node than allowed", "Lower --memory, or ask for more CPUs.", never=True
    ),
    "DeadLine": _w("it cannot end before its deadline any more", "Submit it with a later --deadline.", never=True),
    "JobArrayTaskLimit": _w("as many tasks of its array as it allows are running"),
    "NodeDown": _w("a node that it needs is down", "`sinfo -R` says why nodes are down."),
    "FrontEndDown": _w("the front end that it needs is down", "Ask the administrators of the cluster."),
    "Cleaning": _w("its processes of before are still being cleared away"),
    "Prolog": _w("the prolog of the site prepares its nodes"),
    "Reboot": _w("its nodes are being started again"),
    "BurstBufferResources": _w("there is no room in the burst buffer"),
    "BurstBufferStageIn": _w("its files are being staged in"),
    "BurstBufferOperation": _w(
        "an operation of its burst buffer has failed", "`scontrol show burst` says more.", never=True
    ),
    "PowerNotAvail": _w("there is not enough power for it now"),
    "PowerReserved": _w("power is kept for a reservation"),
    "FedJobLock": _w("clusters of the federation agree on who starts it"),
    "Federation": _w("another cluster of the federation is to start it"),
    "JobLaunchFailure": _w("it could not be started on its nodes", _HELD_FIX),
    "launch failed requeued held": _w("it could not be started on its nodes, and is held now", _HELD_FIX, never=True),
    "SystemFailure": _w("Slurm itself has failed", "Ask the administrators of the cluster."),
    "InactiveLimit": _w("it was idle for longer than the cluster allows"),
    "NonZeroExitCode": _w("it has ended with a code that is not zero"),
    "TimeLimit": _w("its time limit was over"),
    "OutOfMemory": _w("it ran out of memory"),
}
"""By Slurm's word: text, what to do, whether it can never start. Limits are put together by `_explain_limit`."""

_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)?(?P<kind>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|Node|Memory|Mem|GRES|Gres|BB|License|Energy|Billing|Unknown|Jobs|Submit|Wall)"
    r"(?P<rest>[A-Za-z]*)"
)
_WHAT: Mapping[str, str] = {
    "cpu": "CPUs",
    "node": "nodes",
    "mem": "memory",
    "memory": "memory",
    "gres": "GPUs or other generic resources",
    "bb": "burst buffer",
    "license": "licenses",
    "energy": "energy",
    "billing": "billing units",
    "unknown": "a resource",
    "jobs": "running jobs",
    "submit": "submitted jobs",
    "wall": "run time",
}
_NEVER_SCOPES = ("PerJob", "PerNode", "WallDuration", "NotSatisfied")


def explain_wait(reason: str) -> Wait:
    """What a pending reason means. Words that nobody knows are shown as they are; nothing is concluded from them."""
    said = reason.strip().removeprefix("(").removesuffix(")").strip()
    if "_" in said and " " not in said:  # scontrol writes them so
        said = said.replace("_", " ")
    head, _, rest = said.partition(",")
    if said.startswith("Nodes required for job"):
        head, rest = next(key for key in WAITS if key.startswith("Nodes required")), ""
    row = WAITS.get(head.strip()) or WAITS.get(_FOLDED.get(head.strip().lower(), ""))
    if row is not None:
        text, fix, never = row
        detail = f" ({rest.strip()})" if rest.strip() else ""
        word = "Nodes DOWN, DRAINED or reserved" if head.startswith("Nodes required") else head.strip()
        return Wait(word=word or "None", text=f"{text}{detail}", fix=fix, never=never)
    limit = _LIMIT.fullmatch(head.strip())
    if limit is not None:
        return _explain_limit(head.strip(), limit)
    return Wait(word=said or "None", text="Slurm's own words" if said else WAITS["None"][0])


_FOLDED: Mapping[str, str] = {key.lower(): key for key in WAITS}


def _explain_limit(word: str, limit: re.Match[str]) -> Wait:
    """One of the many words for limits: who has it, of what, counted how."""
    rest = limit["rest"]
    whose = {"QOS": "its QOS", "Assoc": "its account"}.get(limit["whose"] or "", "its QOS")
    what = _WHAT[limit["what"].lower()]
    if limit["kind"] == "Min":
        text = f"it asks for fewer {what} than {whose} demands of each job"
        return Wait(word=word, text=text, fix="Ask for more, or use another --qos.", never=True)
    if "RunMinutes" in rest:
        what = f"minutes of {what} that running jobs may still use"
    elif "Minutes" in rest:
        what = f"minutes of {what}"
    scope = next((f" {said}" for key, said in _SCOPES.items() if key in rest), "")
    if any(key in rest for key in _NEVER_SCOPES):
        text = f"it asks for more {what}{scope} than {whose} allows"
        return Wait(word=word, text=text, fix=_LIMIT_FIX, never=True)
    if limit["kind"] == "Grp":
        scope = " of all its users together"
    spent = ("Minutes" in rest and "RunMinutes" not in rest) or limit["what"] == "Wall"
    text = f"{whose} has {'used up its' if spent else 'reached its limit of'} {what}{scope}"
    fix = (
        "It starts when usage has decayed, or the limit is raised."
        if spent
        else "It starts when other jobs under the same limit end."
    )
    return Wait(word=word, text=text, fix=fix)


_SCOPES: Mapping[str, str] = {
    "PerJob": "per job",
    "PerNode": "per node",
    "PerUser": "per user",
    "PerAccount": "per account",
    "WallDuration": "",
}


def render_clock(time: float, *, now: float, tz: dt.tzinfo | None = None) -> str:
    """`14:05`, or `3 Dec 14:05` on another day; None: in the time zone of this machine."""
    moment, today = (dt.datetime.fromtimestamp(at, tz=dt.timezone.utc).astimezone(tz) for at in (time, now))
    clock = f"{moment:%H:%M}"
    return clock if moment.date() == today.date() else f"{moment.day} {moment:%b} {clock}"
