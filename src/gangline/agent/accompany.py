"""Looks after the company of a node's ranks: starts it, waits for it, and tells the leader when it is gone.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gangline.agent.environ import AttemptTerms
from gangline.agent.localattempt import LocalAttempt
from gangline.agent.loop import Loop
from gangline.agent.site import Journal, Site, complain
from gangline.agent.strategies import rules_of
from gangline.agent.strategies.company import Company, CompanyFault
from gangline.domain.phase import Reason
from gangline.rundir.files import write_bytes
from gangline.rundir.layout import AttemptDir

__all__ = ["Accompaniment"]

_SOON_S = 0.02
_LATER_S = 0.5
_BLAME_PAUSE_S = 1.0
"""A rank that fails takes its company along, which may be seen first: then the rank is to blame."""


class Accompaniment:
    """The company of one node, one attempt after the other.

    Args:
        report: takes `{"say": "company", ...}`: why the attempt cannot go on.
        on_ready: called when the ranks may start.
    """

    def __init__(
        self,
        site: Site,
        loop: Loop,
        *,
        journal: Journal,
        report: Callable[[dict[str, Any]], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._site = site
        self._loop = loop
        self._journal = journal
        self._report = report
        self._on_ready = on_ready

    def is_there(self, attempt: LocalAttempt, terms: AttemptTerms) -> bool:
        """Whether the ranks may start; the first call has their company start, and `on_ready` is called later."""
        if attempt.company is None:
            rules = rules_of(self._site.launch.strategy)
            self._write_files(attempt.folder, terms)
            attempt.company = rules.company(self._site, terms) or Company()
            if not self._begin(attempt, attempt.company):
                return False
        return attempt.company.ready

    def rank_ended(self, attempt: LocalAttempt, rank: int, exit_code: int | None) -> None:
        """Called before the end of the rank is told."""
        company = attempt.company
        if company is None:
            return
        company.rank_ended(rank, exit_code)
        if exit_code and (what := company.killed()):
            self._tell(attempt, CompanyFault(what))

    def _write_files(self, folder: AttemptDir, terms: AttemptTerms) -> None:
        """Each agent writes the same; every file appears by rename."""
        files = rules_of(self._site.launch.strategy).files(self._site.launch, terms)
        try:
            for name, text in files.items():
                write_bytes(folder.path / name, text.encode("utf-8"))
        except OSError as error:  # the next file that cannot be written ends the attempt, and says why
            complain(f"cannot write a file of the strategy: {error}")

    def _begin(self, attempt: LocalAttempt, company: Company) -> bool:
        try:
            company.begin()
        except (CompanyFault, OSError) as error:
            self._tell(attempt, error)
            return False
        if not company.ready:
            self._loop.after(_SOON_S, lambda: self._look(attempt, company))
        return True

    def _look(self, attempt: LocalAttempt, company: Company) -> None:
        """Again and again, until the attempt is being ended."""
        if attempt.teardown is not None or attempt.cleared:
            return
        was_ready = company.ready
        try:
            company.look()
        except (CompanyFault, OSError) as error:
            told = error  # the name is gone when the pause is over
            self._loop.after(_BLAME_PAUSE_S if was_ready else 0.0, lambda: self._tell(attempt, told))
            return
        while company.notes:
            kind, text = company.notes.pop(0)
            self._journal.write(kind, text=text)
        if company.ready and not was_ready:
            self._on_ready()
        self._loop.after(_LATER_S if company.ready else _SOON_S, lambda: self._look(attempt, company))

    def _tell(self, attempt: LocalAttempt, error: Exception) -> None:
        if attempt.teardown is not None or attempt.cleared:
            return
        missing = isinstance(error, CompanyFault) and error.missing
        reason = Reason.ENVIRONMENT_MISMATCH if missing else Reason.RENDEZVOUS_FAILED
        said = {"reason": reason.value, "text": str(error), "time": time.time()}
        self._report({"say": "company", "attempt": attempt.folder.number, **said})
