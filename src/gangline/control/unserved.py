"""A pool that somebody names and that is not served: said the same way by every command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from gangline.domain.errors import GanglineError, nearest

__all__ = ["FaultOf", "make_unserved", "warn_of_fault"]

FaultOf = Callable[[str], GanglineError | None]
"""What is wrong with the file of pools, as far as it concerns the pool of this name; see `Backends.fault_of`."""

E = TypeVar("E", bound=GanglineError)


def make_unserved(cls: type[E], name: str, served: Iterable[str], fault: GanglineError | None) -> E:
    """The error for a name that no pool has, which the fault in the file explains if there is one."""
    if fault is None:
        return cls(f"There is no pool `{name}`", fix=nearest(name, served))
    why = " ".join(filter(None, [f"{fault.what}.", fault.why]))
    return cls(f"There is no pool `{name}`", why=why, fix=fault.fix)


def warn_of_fault(name: str, fault: GanglineError | None) -> str | None:
    """What there is to say of a pool that serves as it did before somebody changed the file."""
    return None if fault is None else f"Pool `{name}` is used as it was before: {fault}"
