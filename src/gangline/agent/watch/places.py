"""Where ranks are: from frames to "waits in all_reduce (train.py:41)", and which rank the others wait for.

Pure; standard library only.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.agent.watch.frames import Frame, Thread, is_library, is_ours, main_thread, parse_traceback

__all__ = [
    "Finding",
    "Group",
    "Place",
    "RankView",
    "decide_finding",
    "decide_place",
    "decide_raised",
    "group_ranks",
    "have_moved",
    "render_ranks",
]

_C10D = re.compile(r"torch[/\\]distributed[/\\](distributed_c10d|c10d_logger|_functional_collectives)\.py$")
_WAITS: Sequence[tuple[str, str, str]] = (
    (r"torch[/\\]distributed[/\\](rendezvous|elastic[/\\].*)\.py$", r"", "init_process_group"),
    (r"torch[/\\]distributed[/\\]checkpoint[/\\]", r"", "a distributed checkpoint"),
    (r"torch[/\\]distributed[/\\]fsdp[/\\]|_composable[/\\]fsdp", r"", "FSDP"),
    (r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py$", r"", "DistributedDataParallel"),
    (r"torch[/\\]autograd[/\\]|torch[/\\]_tensor\.py$", r"backward", "backward"),
    (r"torch[/\\]cuda[/\\]", r"^synchronize$", "torch.cuda.synchronize"),
    (r"gangline[/\\]training[/\\](saving|gathering)\.py$", r"", "gangline.checkpoint"),
    (r"horovod[/\\].*mpi_ops\.py$", r"", "a Horovod collective"),
    (r"jax[/\\]_src[/\\](array|api|distributed)\.py$", r"block_until_ready|^_value$|^initialize$", "JAX"),
)
"""File, function, and what a rank waits in that is there: for other ranks, as far as one can tell."""
_BUSY: Sequence[tuple[str, str, str]] = (
    (r"torch[/\\]utils[/\\]data[/\\]dataloader\.py$", r"", "the data loader"),
    (r"torch[/\\]serialization\.py$", r"^(save|_save|load|_load)$", "torch.save or torch.load"),
    (r"torch[/\\]_(dynamo|inductor)[/\\]", r"", "torch.compile"),
)
"""The same for what no other rank is needed for."""
_NATIVE = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".rs")
"""How files of native code end whose lines py-spy knows."""
_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_WAITING_CODE = re.compile(
    r"\b(?:dist|distributed|c10d)\.([a-z_]+)\s*\(|\b(?:work|handle|request|req|future|fut)\w*(?:\[[^]]*\])?\.(wait)\s*\("
    r"|\bcomm\w*\.([A-Za-z]+)\s*\(|\bstore\.(get|wait)\s*\("
)
_NO_WAIT = frozenset({"get_rank", "get_world_size", "is_initialized", "is_available", "get_backend"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank is."""

    what: str
    """`all_reduce`, `time.sleep`, `the data loader`; "" where only the line is known."""
    where: str
    """`train.py:41`: the innermost line of the user's own code."""
    waits: bool
    """For other ranks."""

    @property
    def told(self) -> str:
        """`waiting in all_reduce (train.py:41)`; "" where it is not known."""
        if not self.what and not self.where:
            return ""
        return f"waiting {self}" if self.waits else str(self)

    def __str__(self) -> str:
        if not self.what:
            return f"at {self.where}" if self.where else "at an unknown place"
        return f"in {self.what} ({self.where})" if self.where else f"in {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """What was found of one rank."""

    rank: int
    threads: Sequence[Thread] = ()
    state: str = "runs"
    """`runs`, `stopped`, `traced`, `blocked` (in the kernel, for storage), `ended`, `silent` (no answer)."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that are in one place."""

    ranks: tuple[int, ...]
    place: Place
    state: str

    def __str__(self) -> str:
        return f"{render_ranks(self.ranks)} {self.verb}"

    @property
    def verb(self) -> str:
        """`wait in barrier (train.py:7)`."""
        many = len(self.ranks) > 1
        said = {"stopped": "stopped (SIGSTOP)", "traced": "held by a debugger", "blocked": "blocked in the kernel"}
        if self.state == "ended":
            return "have ended with 0" if many else "has ended with 0"
        if self.state == "silent":
            return "give no stacks" if many else "gives no stacks"
        if self.state in said:
            at = f", {self.place}" if self.place.what or self.place.where else ""
            return f"{'are' if many else 'is'} {said[self.state]}{at}"
        if self.place.waits:
            return f"{'wait' if many else 'waits'} {self.place}"
        return f"{'are' if many else 'is'} {self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Who is where, in one sentence, and who is missing."""

    groups: tuple[Group, ...]
    culprit: int | None
    """The rank that the others wait for; None where the stacks do not tell."""
    text: str
    hint: str
    certain: bool
    """The ranks that are left can never go on: all wait, and one that they may wait for has ended."""


def decide_place(threads: Sequence[Thread]) -> Place:
    """The place of one rank, by its main thread."""
    thread = main_thread(threads)
    frames = [frame for frame in thread.frames if not is_ours(frame)] if thread is not None else []
    own = next((frame for frame in frames if not is_library(frame)), None)
    where = f"{os.path.basename(own.file)}:{own.line}" if own is not None else ""  # noqa: PTH119 - any system's path
    python = [frame for frame in frames if frame.line]
    if python and not is_library(python[0]):
        return _own_place(python[0], where)
    for index, frame in enumerate(python):
        if _C10D.search(frame.file):
            return Place(what=_collective(python[index:]), where=where, waits=True)
        for table, waits in ((_WAITS, True), (_BUSY, False)):
            what = _lookup(frame, table)
            if what:
                return Place(what=what, where=where, waits=waits)
        if frame is own:
            break
    if own is None:
        return Place(what=python[0].function if python else "", where="", waits=False)
    return _own_place(own, where)


def decide_raised(traceback: str) -> str:
    """Where a rank was when it raised: `waiting in barrier (train.py:7)`, `at train.py:7`; "" where nothing tells."""
    thread = parse_traceback(traceback)
    if thread is None:
        return ""
    place = decide_place([thread])
    return place.told if place.waits else Place(what="", where=place.where, waits=False).told


def have_moved(before: Sequence[RankView], now: Sequence[RankView]) -> bool:
    """Whether a rank that waits for no other was somewhere else before; not where one is stopped, as none gets far."""
    if any(view.state == "stopped" for view in now):
        return False
    earlier = {view.rank: view for view in before}
    for view in now:
        old = earlier.get(view.rank)
        if old is None or view.state != "runs" or old.state != "runs" or not view.threads or not old.threads:
            continue
        if decide_place(view.threads).waits and decide_place(old.threads).waits:
            continue
        if any(one != other for one, other in zip(_lines(view.threads), _lines(old.threads), strict=False)):
            return True
    return False


def group_ranks(views: Sequence[RankView]) -> tuple[Group, ...]:
    """Ranks by place, the largest group first."""
    found: dict[tuple[str, Place], list[int]] = {}
    for view in views:
        place = decide_place(view.threads)
        found.setdefault((view.state, place), []).append(view.rank)
    groups = [Group(ranks=tuple(sorted(ranks)), place=place, state=state) for (state, place), ranks in found.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def decide_finding(views: Sequence[RankView], *, whole: bool = True) -> Finding:
    """What the stacks of the ranks say together.

    Args:
        whole: they are those of all ranks; of some, nobody can tell who waits for whom.
    """
    groups = group_ranks(views)
    waiting = [group for group in groups if group.place.waits and group.state == "runs"]
    others = [group for group in groups if group not in waiting]
    culprit, hint = _decide_culprit(waiting, others)
    if not whole and hint in {_MISSING, _MISMATCH, _TOGETHER}:
        culprit, hint = None, ""
    ended = any(group.state == "ended" for group in others)
    text = "; ".join(_in_order(waiting, others)) + "."
    return Finding(
        groups=groups,
        culprit=culprit,
        text=text[0].upper() + text[1:],
        hint=hint,
        certain=bool(waiting) and ended and all(group.state == "ended" for group in others),
    )


def render_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def _in_order(waiting: Sequence[Group], others: Sequence[Group]) -> list[str]:
    """A rank that has ended is said first: it is why the others wait."""
    ended = [group for group in others if group.state == "ended"]
    rest = [group for group in others if group.state != "ended"]
    return [str(group) for group in (*ended, *waiting, *rest)] or ["no stacks could be taken"]


def _lines(threads: Sequence[Thread]) -> list[tuple[str, int]]:
    """Where the main thread is, innermost first, without native frames: the same however a look was taken."""
    thread = main_thread(threads)
    frames = () if thread is None else thread.frames
    return [(frame.file, frame.line) for frame in frames if frame.line and not frame.file.endswith(_NATIVE)]


def _decide_culprit(waiting: Sequence[Group], others: Sequence[Group]) -> tuple[int | None, str]:
    for state, hint in _HINTS.items():
        held = [group for group in others if group.state == state]
        if held and (state != "ended" or waiting):
            return held[0].ranks[0], hint
    missing = [group for group in others if group.state == "runs"]
    if missing and waiting:
        return min(missing, key=lambda group: (len(group.ranks), group.ranks)).ranks[0], _MISSING
    if len(waiting) > 1:
        return min(waiting, key=lambda group: (len(group.ranks), group.ranks)).ranks[0], _MISMATCH
    if len(waiting) == 1 and not others:
        return None, _ASSEMBLY if waiting[0].place.what == "init_process_group" else _TOGETHER
    if len(others) == 1 and len(others[0].ranks) == 1:
        return others[0].ranks[0], ""
    return None, ""


_HINTS: Mapping[str, str] = {
    "stopped": "Somebody or something sent SIGSTOP to it; SIGCONT lets it go on.",
    "traced": "A debugger or tracer holds it.",
    "blocked": "It waits in the kernel, mostly for storage or a device: look at the file system and at that machine.",
    "ended": "It left before the others: let every rank take the same number of steps, and reach the same collectives.",
}
_MISSING = "The others wait for it: look at its stack and at its log."
_MISMATCH = "The ranks wait in different calls, each for the others: their order of collectives differs."
_TOGETHER = (
    "All ranks wait in the same call: the network between them, or shapes or groups that differ, may be the reason."
)
_ASSEMBLY = (
    "All ranks wait until all are there: the script may ask for another world size, rank or address than the gang has. "
    "Call `init_process_group` with its backend alone: it reads what Gangline sets."
)


def _lookup(frame: Frame, table: Sequence[tuple[str, str, str]]) -> str:
    for file, function, what in table:
        if re.search(file, frame.file) and re.search(function, frame.function):
            return what
    return ""


def _collective(frames: Sequence[Frame]) -> str:
    """The call of `torch.distributed` that the user made: the outermost one of those that lie together."""
    name = frames[0].function
    for frame in frames:
        if not _C10D.search(frame.file):
            break
        if not frame.file.endswith("c10d_logger.py"):
            name = frame.function
    return {"new_group": "new_group", "_new_group_with_tag": "new_group"}.get(name, name)


def _own_place(frame: Frame, where: str) -> Place:
    """A rank whose innermost Python frame is the user's: the call, if its line has just one."""
    waiting = _WAITING_CODE.search(frame.code)
    if waiting is not None:
        name = next(filter(None, waiting.groups()))
        if name not in _NO_WAIT:
            return Place(what=name, where=where, waits=True)
    calls = [name for name in _CALL.findall(frame.code) if name not in {"if", "while", "for", "return", "print"}]
    return Place(what=calls[0] if len(calls) == 1 else "", where=where, waits=False)
