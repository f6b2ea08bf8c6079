"""All that is wrong with a spec is said at once: faults are gathered while it is read. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gangline.domain.errors import SpecInvalid

__all__ = ["Faults"]


class Faults:
    """What was found wrong so far."""

    def __init__(self) -> None:
        self._found: list[SpecInvalid] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Go on after the block, whatever is wrong in it; where several things are, each is one."""
        try:
            yield
        except SpecInvalid as error:
            self.add(error)

    def add(self, fault: SpecInvalid) -> None:
        self._found += fault.faults or (fault,)

    def raise_all(self, where: str) -> None:
        """Go on only if nothing was wrong.

        Args:
            where: what was read, at the beginning of a sentence.
        Raises:
            SpecInvalid: the one fault, or one that tells of all of them.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            error = SpecInvalid(f"{where} has {len(self._found)} faults", why="\n".join(map(str, self._found)))
            error.faults = tuple(self._found)
            raise error
