"""Slurm's job states, 20.11 to 25.x, and what each says about a launch.

Written from the manual pages of squeue and sacct, and from what clusters print: long and compact codes, cut forms
(`COMPLETIN`, `OUT_OF_ME+`), `CANCELLED by 1000`, several flags at once. Imports `gangline.domain` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gangline.domain.phase import Reason

__all__ = ["STATES", "JobState", "Standing", "StateMeaning", "parse_state"]


class Standing(str, Enum):
    """What a state means for a launch. UNKNOWN is never an end."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    """The job is over, some of its processes or its epilog may not be."""
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMeaning:
    """One row of the table."""

    standing: Standing
    code: str = ""
    """The compact form; "" where the manual has none."""
    words: str = ""
    """What happened, for people; "" where the state says it all."""
    reason: Reason | None = None
    cancelled: bool = False
    preempted: bool = False
    is_requeue: bool = False
    """Slurm has put the job back into its queue, or is about to."""
    may_return: bool = False
    """After this end Slurm may put the job back into its queue by itself."""


_P, _R, _G, _E, _U = Standing.PENDING, Standing.RUNNING, Standing.ENDING, Standing.ENDED, Standing.UNKNOWN

STATES: Mapping[str, StateMeaning] = {
    "PENDING": StateMeaning(standing=_P, code="PD"),
    "CONFIGURING": StateMeaning(standing=_P, code="CF", words="its nodes are being made ready"),
    "POWER_UP_NODE": StateMeaning(standing=_P, words="its nodes are being switched on"),
    "REQUEUED": StateMeaning(standing=_P, code="RQ", is_requeue=True, words="Slurm puts it back into its queue"),
    "REQUEUE_FED": StateMeaning(standing=_P, code="RF", is_requeue=True, words="the federation puts it back"),
    "REQUEUE_HOLD": StateMeaning(
        standing=_P, code="RH", is_requeue=True, words="it was put back into the queue and is held"
    ),
    "SPECIAL_EXIT": StateMeaning(
        standing=_P, code="SE", is_requeue=True, words="it was put back in a special state, and is held"
    ),
    "RESV_DEL_HOLD": StateMeaning(standing=_P, code="RD", words="its reservation was deleted, and it is held"),
    "EXPEDITING": StateMeaning(standing=_P, is_requeue=True, words="Slurm starts it again ahead of all others"),
    "RUNNING": StateMeaning(standing=_R, code="R"),
    "RESIZING": StateMeaning(standing=_R, code="RS"),
    "SIGNALING": StateMeaning(standing=_R, code="SI"),
    "STOPPED": StateMeaning(standing=_R, code="ST", words="its processes were stopped with SIGSTOP"),
    "SUSPENDED": StateMeaning(standing=_R, code="S", words="it is suspended, others use its nodes meanwhile"),
    "COMPLETING": StateMeaning(standing=_G, code="CG"),
    "STAGE_OUT": StateMeaning(standing=_G, code="SO", words="its files are being staged out"),
    "UPDATE_DB": StateMeaning(standing=_G),
    "COMPLETED": StateMeaning(standing=_E, code="CD"),
    "FAILED": StateMeaning(standing=_E, code="F"),
    "CANCELLED": StateMeaning(standing=_E, code="CA", cancelled=True),
    "TIMEOUT": StateMeaning(
        standing=_E, code="TO", reason=Reason.TIME_LIMIT, words="the time limit that it was submitted with was over"
    ),
    "DEADLINE": StateMeaning(standing=_E, code="DL", reason=Reason.TIME_LIMIT, words="its deadline has passed"),
    "OUT_OF_MEMORY": StateMeaning(
        standing=_E, code="OOM", reason=Reason.OUT_OF_MEMORY, words="it used more memory than it had asked for"
    ),
    "NODE_FAIL": StateMeaning(
        standing=_E, code="NF", reason=Reason.NODE_LOST, may_return=True, words="a node of it failed"
    ),
    "BOOT_FAIL": StateMeaning(
        standing=_E, code="BF", reason=Reason.NODE_LOST, may_return=True, words="a node of it did not boot"
    ),
    "PREEMPTED": StateMeaning(
        standing=_E,
        code="PR",
        reason=Reason.PREEMPTED,
        preempted=True,
        may_return=True,
        words="Slurm gave its nodes to a job that comes first",
    ),
    "LAUNCH_FAILED": StateMeaning(
        standing=_E, reason=Reason.NODE_LOST, may_return=True, words="it could not be started on its nodes"
    ),
    "RECONFIG_FAIL": StateMeaning(
        standing=_E, reason=Reason.NODE_LOST, may_return=True, words="a node could not be set up for it"
    ),
    "REVOKED": StateMeaning(standing=_U, code="RV", words="another cluster of the federation has it"),
}
"""By long name."""

_BY_CODE: Mapping[str, str] = {meaning.code: name for name, meaning in STATES.items() if meaning.code}
_FLAGS = ("COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "EXPEDITING", "RESV_DEL_HOLD")
"""Where several are told at once, these say where the job is; the others, how it got there."""
_ENDED_FLAGS = frozenset({"LAUNCH_FAILED", "RECONFIG_FAIL"})
"""They say something of an end, or of a start that is tried again; alone or beside an end they count as one."""
_SHORTEST_CUT = 4
_BY = re.compile(r"CANCELLED\+?\s+by\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A state as Slurm has said it, and what it means."""

    raw: str
    names: tuple[str, ...]
    """Those of the table that were recognised, the one that counts first."""
    meaning: StateMeaning
    by: str = ""
    """Who cancelled it, as Slurm says it: mostly a numeric user id."""

    @property
    def standing(self) -> Standing:
        return self.meaning.standing

    @property
    def name(self) -> str:
        """The long name; what Slurm said where it is none of ours."""
        return self.names[0] if self.names else self.raw


_UNKNOWN = StateMeaning(standing=Standing.UNKNOWN)


def parse_state(said: str | Sequence[str]) -> JobState:
    """Read a state, as text or as the list of flags that JSON has.

    What is not in the table, or is cut so short that it could be an end or none, is UNKNOWN with its raw form.
    """
    raw = said.strip() if isinstance(said, str) else "|".join(part.strip() for part in said)
    by = _BY.search(raw)
    parts = re.split(r"[|,]", _BY.sub("CANCELLED", raw))
    found = [_resolve(part.strip().upper()) for part in parts if part.strip()]
    names = [name for name in found if name is not None]
    if not names or len(names) < len(found):
        return JobState(raw=raw, names=tuple(names), meaning=_UNKNOWN)
    ordered = sorted(names, key=_weight)
    meaning = _combine(ordered)
    return JobState(raw=raw, names=tuple(ordered), meaning=meaning, by=by.group(1) if by else "")


def _resolve(word: str) -> str | None:
    """The long name for a long, compact or cut one; None where there is none, or it could mean two things."""
    word = word.removesuffix("+")
    if word in STATES:
        return word
    if word in _BY_CODE:
        return _BY_CODE[word]
    if len(word) < _SHORTEST_CUT:
        return None
    candidates = [name for name in STATES if name.startswith(word)]
    if len({(STATES[name].standing, STATES[name].is_requeue) for name in candidates}) == 1:
        return candidates[0]
    return None


def _weight(name: str) -> int:
    """Ends first, then what else a job may be, flags last: the first one gives the name."""
    if STATES[name].standing is Standing.ENDED:
        return 2 if name in _ENDED_FLAGS else 0
    return 3 if name in _FLAGS else 1


def _combine(names: Sequence[str]) -> StateMeaning:
    """What several flags say together: a requeue is no end, and what completes has not ended yet."""
    first = STATES[names[0]]
    if len(names) == 1:
        return first
    for flag in _FLAGS:
        if flag in names:
            said = STATES[flag]
            return StateMeaning(
                standing=said.standing,
                code=said.code,
                words=said.words or first.words,
                reason=first.reason,
                cancelled=first.cancelled,
                preempted=first.preempted,
                is_requeue=any(STATES[name].is_requeue for name in names),
                may_return=first.may_return,
            )
    if any(STATES[name].standing is Standing.UNKNOWN for name in names):
        return _UNKNOWN
    active = [name for name in names if STATES[name].standing in {Standing.PENDING, Standing.RUNNING}]
    if active:  # RUNNING beside LAUNCH_FAILED, CONFIGURING, SIGNALING …: what is not over decides
        held = [name for name in active if STATES[name].standing is Standing.PENDING]
        return STATES[(held or active)[0]]
    return first
