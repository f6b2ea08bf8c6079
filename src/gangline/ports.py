"""The seams of Gangline: what control needs from the world, as protocols.

Imports `gangline.domain`, and what `gangline.rundir` says of checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from gangline.domain.gang import Capability, Cleared, GangSpec, Handle, Launch, Observation, Places, PoolCapacity
from gangline.domain.pool import Finding, PoolJob, PoolState
from gangline.domain.spec import RunSpec
from gangline.rundir.checkpoints import FoundCheckpoint

__all__ = ["Ahead", "Backend", "Clock", "Queued", "Site"]


class Site(Protocol):
    """The machines of a pool as files and programs: what can be seen of a run's needs before it waits.

    Every method may raise `Transient` or `AuthFailed`: nobody can be asked now. None waits for a connection to open.
    """

    def check(self, spec: RunSpec) -> None:
        """Refuse what this kind of pool does not have. Pure.

        Args:
            spec: complete; it has passed what every pool asks for.
        Raises:
            SpecInvalid: names the key, the value, and what to do.
        """
        ...

    def python(self, asked: str | None, client: Mapping[str, Any]) -> str:
        """The interpreter of the ranks as agents look for it: an absolute path, or a name on their PATH.

        Args:
            asked: an interpreter, or the folder of an environment; None: the pool's choice.
            client: may say under `python` which interpreter the command line runs on.
        Raises:
            SpecInvalid: there is none.
        """
        ...

    def unseen_python(self, asked: str | None) -> str:
        """The interpreter of the ranks where nobody can look for it now; agents do. Asks nobody, and never fails."""
        ...

    def probe_writable(self, folder: str, flag: str) -> None:
        """Write a file into a folder, which is made if it is missing, and remove it.

        Args:
            flag: what has named the folder.
        Raises:
            SpecInvalid: that did not work; it says why.
        """
        ...

    def checkpoints(self, root: str) -> list[FoundCheckpoint]:
        """Every checkpoint folder in a checkpoint path, oldest first; [] where the path does not exist.

        Of a save that was not finished, `run_id` and `time` are whose it is and when it was last written to, as far
        as can be told.

        Raises:
            SpecInvalid: the path cannot be read.
        """
        ...

    def checkpoint(self, folder: str) -> FoundCheckpoint | None:
        """What a folder that a person named, or a link to one, is worth as a checkpoint; None: there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A launch that waits in the queue of its pool for the end of the one before it."""

    launch: int
    job: str
    """What the pool calls it; "": it is not known whether it was taken."""


class Ahead(Protocol):
    """Launches that are handed over before they are needed, to wait for the end of those before them.

    `Backend.submit` of such a launch takes it over as it is, if it still is what would be submitted. Every method may
    raise the classes under `BackendError`.
    """

    @property
    def lead_s(self) -> float:
        """How long before the end of a launch's time the next one is handed over; 0: never."""
        ...

    def queue(self, gang: GangSpec, *, after: Handle) -> str:
        """Hand over a launch whose `launch.json` is written when it is needed; what the pool calls it.

        Twice gives one.

        Raises:
            Rejected, NoCapacity: there is none.
            Transient, AuthFailed: nothing is known.
        """
        ...

    def withdraw(self, run_id: str) -> None:
        """Take back what waits for a run; idempotent."""
        ...

    def queued(self) -> Mapping[str, Queued]:
        """What may wait, by run; asks nobody."""
        ...


@runtime_checkable
class Backend(Protocol):
    """What holds machines. One contract suite (`tests/contract/`) runs against every implementation and the fake.

    Every method may raise the classes under `BackendError`; control acts on the class, never on text.
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]]

    @property
    def site(self) -> Site:
        """The pool's machines, for checks."""
        ...

    @property
    def ahead(self) -> Ahead | None:
        """Where launches wait for the end of others; None: nowhere."""
        ...

    def state(self) -> PoolState:
        """How the pool can be reached, as far as is known; asks nobody."""
        ...

    def examine(self, *, deep: bool) -> list[Finding]:
        """Look at everything that the pool needs; connects at once, whatever came before. Raises nothing.

        Args:
            deep: also start something tiny on a machine of the pool, which may have to wait for one.
        """
        ...

    def jobs(self, expected: Mapping[tuple[str, int], Handle | None], *, quiet_s: float) -> list[PoolJob]:
        """What the pool's own queue holds for this server, and how it stands to our runs; [] where it has no queue.

        Args:
            expected: launches that the server counts on, by run and number; None: its handle is not known yet.
            quiet_s: how long a run may make no progress before that is said.
        """
        ...

    def end_job(self, job: PoolJob) -> None:
        """End a job that no run counts on."""
        ...

    def login_command(self) -> tuple[str, ...]:
        """What a person types where the pool wants a password or a second factor; () where none ever does."""
        ...

    def close(self) -> None:
        """Let go of connections and threads, in a moment; launches go on. Idempotent."""
        ...

    def capacity(self) -> PoolCapacity:
        """What the pool could ever hold."""
        ...

    def places(self, run_id: str) -> Places:
        """Where the agents of a run find its files, on their machines. Pure."""
        ...

    def lane(self, spec: RunSpec) -> str:
        """The part of the pool that a run goes to, where parts fill up by themselves; else "". Pure."""
        ...

    def render(self, gang: GangSpec) -> Launch:
        """Exactly what `submit` would start. Pure: touches nothing."""
        ...

    def check(self, launch: Launch) -> str:
        """What the pool's scheduler says of a launch that it is not given yet; "" where it is not asked, or not sure.

        Raises:
            Rejected: it would not take it, in its words.
        """
        ...

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """Start the agents; the launch's files are in the server's run directory.

        Twice with one key gives one launch, also when the first call was cut off half-way.

        Raises:
            Rejected, NoCapacity: nothing was started under this key, by this call or an earlier one.
            Transient, AuthFailed: nothing is known.
        """
        ...

    def may_have_started(self, run_id: str, launch: int) -> bool:
        """Whether a call of `submit` for this launch came so far that agents may exist; asks nobody."""
        ...

    def observe(self, handles: Sequence[Handle]) -> Mapping[int, Observation]:
        """What is known of each launch, by its position in `handles`; one call for all.

        Without SHARED_FILES, GONE also says that the mirror holds all that the launch has left.
        """
        ...

    def cancel(self, handle: Handle) -> None:
        """End a launch by force; idempotent, returns at once."""
        ...

    def clear(self, run_id: str, *, keep_checkpoints: bool) -> Cleared:
        """Remove the folder of a run that is over on the pool's machines, where it is another one than the server's.

        Raises:
            Transient, AuthFailed: the pool does not answer; the backend itself does it as soon as it does.
        """
        ...

    def describe(self, handle: Handle) -> Mapping[str, str]:
        """What people need to look at the launch themselves: `job`, `log`, exact commands. Pure, for `show`."""
        ...


class Clock(Protocol):
    """Time, so that tests need not wait for it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, delay_s: float) -> None:
        """Wait."""
        ...
