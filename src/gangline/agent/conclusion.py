"""The end of an attempt: how it ended, what follows, and the file that says so.

Imported when the first attempt ends. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline.agent.attempt import Attempt, Ending
from gangline.agent.groundwork import Groundwork
from gangline.agent.life import LifeSign
from gangline.agent.loop import Loop
from gangline.agent.repeats import Repeats
from gangline.agent.result import (
    Outcome,
    Standing,
    decide_lost_folder,
    decide_outcome,
    explain_failure,
    render_first_failure,
    render_result,
)
from gangline.agent.site import Site, complain
from gangline.domain.phase import Budget
from gangline.domain.spec import OnTimeLimit
from gangline.rundir.files import Unreadable, read_json, render_json, write_json
from gangline.rundir.space import STORAGE_WORDS, describe_full, is_full

__all__ = ["Conclusion", "paid_so_far"]

_WRITE_AGAIN_S = 1.0
_MOST_WRITES = 60
_MOST_WRITES_FULL = 10


class Conclusion:
    """Concludes the attempts of one launch; keeps account of what restarts have cost.

    Args:
        life: holds some room on the disk, which the result takes if it is full.
        write: records an event.
        on_written: the result is on the disk, and may be acted on.
        on_given_up: it cannot be written: nothing may follow from an end that nobody can read of.
    """

    def __init__(
        self,
        site: Site,
        loop: Loop,
        *,
        ground: Groundwork,
        life: LifeSign,
        write: Callable[..., None],
        on_written: Callable[[dict[str, Any], Outcome], None],
        on_given_up: Callable[[], None],
    ) -> None:
        self._launch = site.launch
        self._run = site.run
        self._loop = loop
        self._ground = ground
        self._life = life
        self._write_event = write
        self._on_written = on_written
        self._on_given_up = on_given_up
        self._used = paid_so_far(site)
        self._free_retries = 0
        self._repeats = Repeats()

    def conclude(self, attempt: Attempt, ending: Ending, *, lost_nodes: int) -> None:
        """No process of the attempt is left: look at what it has left on the disk, decide, and write the result."""
        outcome = self._decide(attempt, ending, self._standing(attempt, lost_nodes))
        self._ground.leave(attempt.number)
        self._write(attempt, outcome, tries=_MOST_WRITES)

    def tell_failure(self, attempt: Attempt) -> None:
        """Let everybody know why, while the other ranks are still being ended; the result has the last word."""
        failure, ending = attempt.first_failure(), attempt.ending
        if failure is not None and ending is not None and ending.cause == "failure" and ending.reason is None:
            verdict = explain_failure(self._launch, attempt, failure)
            self._write_event("first_failure", **render_first_failure(attempt.culprit() or failure, verdict))

    def pay(self, outcome: Outcome) -> None:
        """A restart follows."""
        if outcome.free_retry:
            self._free_retries += 1
        elif outcome.budget is not None:
            self._used[outcome.budget] = self._used.get(outcome.budget, 0) + 1

    def _standing(self, attempt: Attempt, lost_nodes: int) -> Standing:
        failure = attempt.culprit()
        said = attempt.ending.message if attempt.ending is not None else ""
        return Standing(
            used=self._used,
            free_retries=self._free_retries,
            repeated=self._repeats.note(failure, step=None if failure is None else failure.step, said=said),
            lost_nodes=lost_nodes,
        )

    def _decide(self, attempt: Attempt, ending: Ending, standing: Standing) -> Outcome:
        lost = self._ground.find_lost()
        if lost is not None and ending.cause != "stop":
            return decide_lost_folder(str(lost), ending.message)
        goes_on = ending.cause == "time_limit" and self._launch.stop.on_time_limit is OnTimeLimit.CONTINUE
        return decide_outcome(
            self._launch,
            attempt,
            standing,
            missing_outputs=self._ground.missing_outputs() if ending.cause == "success" else [],
            newest_step=self._ground.newest_step(attempt.number + 1) if goes_on else None,
        )

    def _write(self, attempt: Attempt, outcome: Outcome, *, tries: int) -> None:
        """Now, or again later: the truth about the attempt has to be on disk before anything follows from it."""
        result, path = render_result(attempt, outcome), self._run.attempt(attempt.number).result
        try:
            write_json(path, result)
        except OSError as error:
            if not is_full(error) or not self._life.become(path, render_json(result)):
                self._write_again(attempt, outcome, error, tries)
                return
        self._on_written(result, outcome)

    def _write_again(self, attempt: Attempt, outcome: Outcome, error: OSError, tries: int) -> None:
        complain(f"the result of attempt {attempt.number} cannot be written: {error}")
        if is_full(error):
            tries = min(tries, _MOST_WRITES_FULL)
        if tries > 0:
            self._loop.after(_WRITE_AGAIN_S, lambda: self._write(attempt, outcome, tries=tries - 1))
            return
        complain(f"{STORAGE_WORDS}: {describe_full(self._run.path, error)}")
        self._on_given_up()


def paid_so_far(site: Site) -> dict[Budget, int]:
    """Restarts that each budget has paid for.

    Those that the server knew of, and those of an earlier leader of this very launch, where a scheduler has put it back
    into its queue.
    """
    used = dict(site.launch.restarts_used)
    for attempt in site.run.attempts():
        if attempt.number < site.launch.first_attempt:
            continue
        try:
            result = read_json(attempt.result) or {}
        except (OSError, Unreadable):
            continue
        if result.get("next") == "restart" and result.get("budget") in Budget._value2member_map_:
            budget = Budget(result["budget"])
            used[budget] = used.get(budget, 0) + 1
    return used
