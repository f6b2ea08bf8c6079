"""The end of an attempt: how it ended, what follows, and the file that says so. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangline.agent.attempt import Attempt, Ending
from gangline.agent.groundwork import Groundwork
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.life import LifeSign
from gangline.agent.loop import Loop
from gangline.agent.repeats import Repeats
from gangline.agent.result import Outcome, Standing, decide_lost_folder, decide_outcome, render_result
from gangline.agent.site import complain
from gangline.domain.spec import OnTimeLimit
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir
from gangline.rundir.space import STORAGE_WORDS, describe_full, is_full

__all__ = ["Accounts", "ResultWriter", "conclude"]

_WRITE_AGAIN_S = 1.0
_MOST_WRITES = 60
_MOST_WRITES_FULL = 10


class Accounts:
    """Which restarts of a launch were paid for by which budget, and how often it failed in the same way."""

    def __init__(self, launch: LaunchSpec) -> None:
        self._used = dict(launch.restarts_used)
        self._free_retries = 0
        self._repeats = Repeats()

    def standing(self, attempt: Attempt, *, lost_nodes: int) -> Standing:
        """Where the launch stands at the end of an attempt, which is counted by that: ask once."""
        failure = attempt.first_failure()
        said = attempt.ending.message if attempt.ending is not None else ""
        return Standing(
            used=self._used,
            free_retries=self._free_retries,
            repeated=self._repeats.note(failure, step=None if failure is None else failure.step, said=said),
            lost_nodes=lost_nodes,
        )

    def pay(self, outcome: Outcome) -> None:
        """A restart follows."""
        if outcome.free_retry:
            self._free_retries += 1
        elif outcome.budget is not None:
            self._used[outcome.budget] = self._used.get(outcome.budget, 0) + 1


def conclude(launch: LaunchSpec, attempt: Attempt, ending: Ending, standing: Standing, ground: Groundwork) -> Outcome:
    """How an attempt ended, of which no process is left; looks at what it has left on the disk."""
    lost = ground.find_lost()
    if lost is not None and ending.cause != "stop":
        return decide_lost_folder(str(lost), ending.message)
    goes_on = ending.cause == "time_limit" and launch.stop.on_time_limit is OnTimeLimit.CONTINUE
    return decide_outcome(
        launch,
        attempt,
        standing,
        missing_outputs=ground.missing_outputs() if ending.cause == "success" else [],
        newest_step=ground.newest_step(attempt.number + 1) if goes_on else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWriter:
    """Writes `result.json`, again where the disk does not take it: before that, nothing follows."""

    run: RunDir
    loop: Loop
    life: LifeSign
    """Holds some room on the disk, which is given back if it is full."""
    on_written: Callable[[dict[str, Any], Outcome], None]
    on_given_up: Callable[[], None]
    """Nothing may follow from an end that nobody can read of."""

    def write(self, attempt: Attempt, outcome: Outcome, *, tries: int = _MOST_WRITES) -> None:
        """Write it, now or later."""
        result = render_result(attempt, outcome)
        try:
            write_json(self.run.attempt(attempt.number).result, result)
        except OSError as error:
            complain(f"the result of attempt {attempt.number} cannot be written: {error}")
            if is_full(error):
                self.life.give_room()
                tries = min(tries, _MOST_WRITES_FULL)
            if tries > 0:
                self.loop.after(_WRITE_AGAIN_S, lambda: self.write(attempt, outcome, tries=tries - 1))
                return
            complain(f"{STORAGE_WORDS}: {describe_full(self.run.path, error)}")
            self.on_given_up()
            return
        self.on_written(result, outcome)
