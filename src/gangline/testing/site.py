"""A pool's machines that are this one, and can be cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.backends.local.site import LocalSite
from gangline.domain.errors import BackendError
from gangline.domain.spec import RunSpec
from gangline.rundir.checkpoints import FoundCheckpoint

__all__ = ["FakeSite"]


class FakeSite(LocalSite):
    """Implements `gangline.ports.Site` over the files of this machine, for any kind of spec.

    Every method but `check` raises `fault`, as long as a test has set one.
    """

    def __init__(self) -> None:
        self.fault: BackendError | None = None

    def check(self, spec: RunSpec) -> None:
        """Everything is allowed."""

    def python(self, asked: str | None, client: Mapping[str, Any]) -> str:
        self._answer()
        return super().python(asked, client)

    def probe_writable(self, folder: str, flag: str) -> None:
        self._answer()
        super().probe_writable(folder, flag)

    def checkpoints(self, root: str) -> list[FoundCheckpoint]:
        self._answer()
        return super().checkpoints(root)

    def checkpoint(self, folder: str) -> FoundCheckpoint | None:
        self._answer()
        return super().checkpoint(folder)

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault
