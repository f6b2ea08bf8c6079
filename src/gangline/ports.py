"""The seams of Gangline: what control needs from the world, as protocols.

Imports `gangline.domain` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from gangline.domain.gang import Capability, GangSpec, Handle, Launch, Observation, Places, PoolCapacity

__all__ = ["Backend", "Clock"]


@runtime_checkable
class Backend(Protocol):
    """What holds machines. One contract suite (`tests/contract/`) runs against every implementation and the fake.

    Every method may raise the classes under `BackendError`; control acts on the class, never on text.
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]]

    def capacity(self) -> PoolCapacity:
        """What the pool could ever hold."""
        ...

    def places(self, run_id: str) -> Places:
        """Where the agents of a run find its files, on their machines. Pure."""
        ...

    def render(self, gang: GangSpec) -> Launch:
        """Exactly what `submit` would start. Pure: touches nothing."""
        ...

    def submit(self, launch: Launch, *, key: str) -> Handle:
        """Start the agents; the launch's files are in the server's run directory.

        Twice with one key gives one launch, also when the first call was cut off half-way.

        Raises:
            Rejected, NoCapacity: nothing was started under this key, by this call or an earlier one.
            Transient, AuthFailed: nothing is known.
        """
        ...

    def observe(self, handles: Sequence[Handle]) -> Mapping[int, Observation]:
        """What is known of each launch, by its position in `handles`; one call for all.

        Without SHARED_FILES, GONE also says that the mirror holds all that the launch has left.
        """
        ...

    def cancel(self, handle: Handle) -> None:
        """End a launch by force; idempotent, returns at once."""
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
