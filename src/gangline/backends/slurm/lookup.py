"""Whether a launch has a job already, although nobody was told of it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from gangline.backends.slurm.link import Link
from gangline.backends.slurm.submission import Listed, parse_listing
from gangline.backends.slurm.tokens import Token, job_name, parse_token
from gangline.domain.errors import Transient

__all__ = ["find_job", "live_jobs"]

_log = logging.getLogger(__name__)

_ASK_S = 60.0
_LONGEST_ID_BYTES = 32
_LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"})


def find_job(link: Link, token: Token, *, run_dir: str, but: Collection[str] = ()) -> str | None:
    """The id of the job of a launch; None: there is none that anything knows of.

    Asked are: the queue, by name, working folder and comment (where the site has left it alone); the id that a job
    leaves in its launch's folder when it starts; accounting, where there is any. Of several, the first one stays, and
    the others are cancelled.

    Args:
        but: jobs that were made for it, and taken back before it began.
    Raises:
        Transient: the queue could not be asked.
    """
    listed = [one for one in _ask_queue(link, token, run_dir) if one.job not in but]
    if listed:
        first, *others = sorted(listed, key=lambda one: int(one.job))
        for other in (one for one in others if one.state in _LIVE):
            _log.warning("job %s is a second one of %s and is cancelled", other.job, token)
            link.run(("scancel", f"--name={job_name(token.run_id, token.launch)}", other.job), timeout_s=_ASK_S)
        return first.job
    noted = _read_id(link, token)
    return noted if noted is not None and noted not in but else _ask_accounting(link, token, run_dir, but)


def live_jobs(link: Link, token: Token, *, run_dir: str) -> list[str]:
    """Ids of the jobs of a launch that wait or run, the first one first.

    Raises:
        Transient: the queue could not be asked.
    """
    listed = _ask_queue(link, token, run_dir)
    return sorted((one.job for one in listed if one.state in _LIVE), key=int)


def _ask_queue(link: Link, token: Token, run_dir: str) -> list[Listed]:
    name = job_name(token.run_id, token.launch)
    user = link.hello().user
    ask = ("squeue", "--noheader", f"--user={user}", f"--name={name}", "--states=all", "--format=%A|%T|%k|%Z")
    ran = link.run(ask, timeout_s=_ASK_S)
    if ran.rc != 0:
        raise Transient(
            "squeue does not say whether there is a job already", why=ran.err.strip() or "It gave no answer"
        )
    return [one for one in parse_listing(ran.out, run_dir) if _is_of(one, token)]


def _read_id(link: Link, token: Token) -> str | None:
    """What the job itself has written."""
    path = f"launches/{token.launch:03d}/job.id"
    raw = link.read([(token.run_id, path, 0, _LONGEST_ID_BYTES)])[0]
    text = (raw or b"").decode("ascii", "replace").strip()
    return text if text.isdigit() else None


def _ask_accounting(link: Link, token: Token, run_dir: str, but: Collection[str]) -> str | None:
    name = job_name(token.run_id, token.launch)
    ask = ("sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}", "--starttime=now-30days")
    ran = link.run((*ask, "--format=JobIDRaw,State,Comment,WorkDir"), timeout_s=_ASK_S)
    if ran.rc != 0:
        return None  # many clusters have none
    found = [one for one in parse_listing(ran.out, run_dir) if _is_of(one, token) and one.job not in but]
    return min((one.job for one in found), key=int, default=None)


def _is_of(listed: Listed, token: Token) -> bool:
    """By its comment, if it is one of ours; name and working folder have been compared."""
    commented = parse_token(listed.comment)
    return commented is None or commented == token
