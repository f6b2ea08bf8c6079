"""Every error that Gangline raises on purpose, and what each one means outside the process.

    GanglineError
    ├── InvalidRequest      the user asked for something that cannot be (a typo, an impossible size)
    │   ├── SpecInvalid     a key or value of the run spec
    │   ├── GangTooLarge    no state of the pool could ever hold the gang
    │   └── SnapshotRefused the working tree cannot be packed as it is
    ├── NotFound            no such run, rank, attempt, snapshot, metric
    ├── Conflict            the thing exists, but its state forbids the request
    │   └── StillEnding     it will not for long: the run is on its way to its end
    ├── Unauthorized        no token, or not the right one
    ├── StorageFull         the disk of the state folder takes no more
    ├── NoAnswer            the leader of a gang was asked, and did not answer in time
    ├── ServerUnreachable   the client found no server, or lost it
    ├── VersionMismatch     command line and server are of different versions
    └── BackendError        what a backend says of its machines; control acts on the class alone
        ├── Transient       try again later; nothing is known to have changed
        ├── Rejected        the backend will never take this
        ├── NoCapacity      not now; wait in the queue
        └── AuthFailed      a person has to log in
            └── HostKeyChanged  the machine there may be another: a person has to find out first

Standard library only.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AuthFailed",
    "BackendError",
    "Conflict",
    "GangTooLarge",
    "GanglineError",
    "HostKeyChanged",
    "InvalidRequest",
    "NoAnswer",
    "NoCapacity",
    "NotFound",
    "Rejected",
    "ServerUnreachable",
    "SnapshotRefused",
    "SpecInvalid",
    "StillEnding",
    "StorageFull",
    "Transient",
    "Unauthorized",
    "VersionMismatch",
    "error_from_code",
    "nearest",
]


class GanglineError(Exception):
    """What happened, why, and what to do about it.

    Args:
        what: one sentence without a full stop at its end.
        why: the cause, or "".
        fix: the next step for a person, or "".
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return " ".join(_sentence(part) for part in (self.what, self.why, self.fix) if part)

    def to_dict(self) -> dict[str, str]:
        """The form that travels in HTTP answers and in `--json` output."""
        return {"code": self.code, "what": self.what, "why": self.why, "fix": self.fix}


class InvalidRequest(GanglineError):
    """The request cannot be met as it was written."""

    code = "invalid_request"
    http_status = 422
    exit_code = 64


class SpecInvalid(InvalidRequest):
    """A key or a value of a run spec is wrong."""

    code = "spec_invalid"
    faults: tuple[SpecInvalid, ...] = ()
    """Where several things are wrong: each of them. Only in the process that found them; `why` tells of all."""


class GangTooLarge(InvalidRequest):
    """No state of the pool could ever hold the gang."""

    code = "gang_too_large"


class SnapshotRefused(InvalidRequest):
    """The working tree cannot be packed as it is."""

    code = "snapshot_refused"


class NotFound(GanglineError):
    """There is no such thing."""

    code = "not_found"
    http_status = 404
    exit_code = 66


class Conflict(GanglineError):
    """The state that the thing is in forbids the request."""

    code = "conflict"
    http_status = 409
    exit_code = 75


class StillEnding(Conflict):
    """The run is on its way to its end; the same request can be met then."""

    code = "still_ending"


class Unauthorized(GanglineError):
    """The call carried no token, or a wrong one."""

    code = "unauthorized"
    http_status = 401
    exit_code = 77


class StorageFull(GanglineError):
    """The disk of the state folder is full, or may only be read."""

    code = "storage_full"
    http_status = 507
    exit_code = 74

    @classmethod
    def of_home(cls, home: str | os.PathLike[str], why: str) -> StorageFull:
        """No server can begin in a state folder."""
        return cls(
            f"The disk of the state folder {os.fspath(home)} takes no more, so that no server can start",
            why=why,
            fix="Make room there, or raise its quota, and try again; `gangline rm` then makes more.",
        )


class NoAnswer(GanglineError):
    """The leader of a gang did not answer in time."""

    code = "no_answer"
    http_status = 504
    exit_code = 75


class ServerUnreachable(GanglineError):
    """No server answered."""

    code = "server_unreachable"
    http_status = 503
    exit_code = 69


class VersionMismatch(GanglineError):
    """Command line and server do not speak the same version."""

    code = "version_mismatch"
    http_status = 426
    exit_code = 76


class BackendError(GanglineError):
    """What a backend says; see the subclasses, which are what control looks at.

    Args:
        brief: one sentence for each run that this keeps from going on, where the whole is said of the pool.
    """

    code = "backend_error"
    http_status = 502
    exit_code = 71

    def __init__(self, what: str, *, why: str = "", fix: str = "", brief: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.brief = brief

    @property
    def for_run(self) -> str:
        """What is said of a run."""
        return self.brief or str(self)


class Transient(BackendError):
    """The backend did not answer, or not sensibly: nothing is decided from this."""

    code = "backend_transient"
    http_status = 503


class Rejected(BackendError):
    """The backend will never take this launch."""

    code = "backend_rejected"
    http_status = 422
    exit_code = 65


class NoCapacity(BackendError):
    """There is no room now; the run waits in the queue.

    Args:
        lane: the part of the pool (`Backend.lane`) that has none; None: all of it.
    """

    code = "no_capacity"
    http_status = 503

    def __init__(self, what: str, *, why: str = "", fix: str = "", lane: str | None = None) -> None:
        super().__init__(what, why=why, fix=fix)
        self.lane = lane


class AuthFailed(BackendError):
    """A person has to log in before the backend answers again."""

    code = "auth_failed"
    http_status = 401
    exit_code = 77


class HostKeyChanged(AuthFailed):
    """The host shows another key than the one that is known: nobody may log in before a person knows why."""

    code = "host_key_changed"


def error_from_code(code: str, *, what: str, why: str = "", fix: str = "") -> GanglineError:
    """The error that a server answered with, as an exception again (unknown codes: GanglineError)."""
    return _classes().get(code, GanglineError)(what, why=why, fix=fix)


def nearest(word: str, valid: Iterable[str]) -> str:
    """A phrase that points to the valid choices: "Did you mean `x`?" or "Valid: a, b, c."."""
    choices = sorted(valid)
    close = get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"Did you mean `{close[0]}`?" if close else f"Valid: {', '.join(choices)}."


def _classes() -> dict[str, type[GanglineError]]:
    found: dict[str, type[GanglineError]] = {}
    waiting: list[type[GanglineError]] = [GanglineError]
    while waiting:
        cls = waiting.pop()
        found[cls.code] = cls
        waiting.extend(cls.__subclasses__())
    return found


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", ":")) else f"{text}."
