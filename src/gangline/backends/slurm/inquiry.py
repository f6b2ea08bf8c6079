"""What is asked of Slurm in one poll: two commands at most, whatever the number of jobs.

The queue is asked about all of them; accounts or the controller about those of which it does not say enough.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from gangline.backends.slurm.evidence import Answers, Ask, Claim, Memory
from gangline.backends.slurm.jsonjobs import Unreadable
from gangline.backends.slurm.link import Link
from gangline.backends.slurm.parse import (
    Form,
    NoAccounting,
    parse_queue,
    parse_sacct,
    parse_scontrol,
    render_queue,
    render_sacct,
    render_scontrol,
)
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.truth import decide_question
from gangline.domain.errors import BackendError
from gangline.domain.gang import Observation
from gangline.ports import Clock

__all__ = ["Inquiry", "Subject"]

_log = logging.getLogger(__name__)

_ASK_S = 60.0
"""How long a command may take: Slurm's own patience with a controller is about 20 s."""
_NAME_S = 10.0
_ACCOUNTS_AGAIN_S = 600.0
"""How soon a cluster that keeps no accounts is asked for them again."""

Subject = tuple[Claim, Memory]


class Inquiry:
    """Asks, and remembers how this cluster wants to be asked.

    Args:
        name: of the pool, for the log.
    """

    def __init__(self, link: Link, clock: Clock, *, name: str) -> None:
        self._link, self._clock, self._name = link, clock, name
        self._form = {Ask.ACCOUNTS: Form.TEXT, None: Form.TEXT}
        self._accounts_from = float("-inf")
        self._last_asked: Ask | None = None
        self._offset_s = 0.0
        self._names: dict[str, str] = {}
        self.trouble: BackendError | None = None
        """Why the queue gave no answer the last time."""
        self.failures = 0
        """How often that was so, in a row."""
        self.took_s = 0.0
        """How long it took to answer."""

    def ask(self, subjects: Sequence[Subject]) -> list[Answers]:
        """What is said of each; trouble is in the answers."""
        common = Answers(has_accounts=self._clock.monotonic() >= self._accounts_from, wall=self._clock.now())
        try:
            listed = self._ask_queue(sorted({claim.job for claim, _ in subjects}, key=lambda job: (len(job), job)))
        except BackendError as error:
            self._note(error)
            return [replace(common, is_fresh=False, trouble=error.for_run)] * len(subjects)
        answers = [replace(common, queue=listed.get(claim.job), clock_offset_s=self._offset_s) for claim, _ in subjects]
        return self._ask_besides(subjects, answers)

    def named(self, seen: Observation) -> Observation:
        """With the name of whoever has cancelled the job, in place of a number."""
        before, found, number = seen.detail.rpartition(" by user ")
        if not found or not number.isdigit():
            return seen
        if number not in self._names:
            self._names[number] = self._look_up(number)
        return replace(seen, detail=f"{before} by {self._names[number]}")

    def _ask_queue(self, jobs: Sequence[str]) -> dict[str, JobRecord]:
        began = self._clock.monotonic()
        ran = self._link.run(render_queue(jobs, self._form[None]), timeout_s=_ASK_S)
        try:
            listed = parse_queue(ran, jobs)
        except Unreadable:
            self._turn(None)
            raise
        self.took_s = self._clock.monotonic() - began
        self.trouble, self.failures = None, 0
        self._offset_s = self._link.hello().clock_offset_s
        return listed

    def _turn(self, ask: Ask | None) -> None:
        """What it says in one form makes no sense: the next time it is asked for the other one."""
        self._form[ask] = Form.JSON if self._form[ask] is Form.TEXT else Form.TEXT

    def _note(self, error: BackendError) -> None:
        if self.trouble is None:
            _log.warning("pool %s: Slurm gives no answer: %s", self._name, error)
        self.trouble = error
        self.failures += 1

    def _ask_besides(self, subjects: Sequence[Subject], answers: list[Answers]) -> list[Answers]:
        now = self._clock.monotonic()
        wanted: dict[Ask, list[int]] = {Ask.ACCOUNTS: [], Ask.CONTROLLER: []}
        for number, (claim, memory) in enumerate(subjects):
            ask = decide_question(claim, memory, answers[number], now)
            if ask is not None:
                wanted[ask].append(number)
        turns = [Ask.CONTROLLER, Ask.ACCOUNTS] if self._last_asked is Ask.ACCOUNTS else [Ask.ACCOUNTS, Ask.CONTROLLER]
        chosen = next((ask for ask in turns if wanted[ask]), None)
        if chosen is None:
            return answers
        self._last_asked = chosen
        numbers = sorted(wanted[chosen], key=lambda number: subjects[number][1].invalid_times)
        jobs = [subjects[number][0].job for number in numbers]
        try:
            said = self._ask_accounts(jobs) if chosen is Ask.ACCOUNTS else self._ask_controller(jobs)
        except NoAccounting:
            self._accounts_from = now + _ACCOUNTS_AGAIN_S
            return [replace(answer, has_accounts=False) for answer in answers]
        except BackendError as error:
            _log.info("pool %s: %s", self._name, error)
            said = dict.fromkeys(jobs, Answers(asked=chosen))
        for number, job in zip(numbers, jobs, strict=True):
            new = said.get(job)
            if new is not None:
                answers[number] = replace(
                    answers[number],
                    asked=chosen,
                    lives=new.lives,
                    controller=new.controller,
                    is_invalid=new.is_invalid,
                )
        return answers

    def _ask_accounts(self, jobs: Sequence[str]) -> dict[str, Answers]:
        ran = self._link.run(render_sacct(jobs, self._form[Ask.ACCOUNTS]), timeout_s=_ASK_S)
        try:
            lives = parse_sacct(ran, jobs)
        except Unreadable:
            self._turn(Ask.ACCOUNTS)
            raise
        return {job: Answers(lives=lives.get(job, [])) for job in jobs}

    def _ask_controller(self, jobs: Sequence[str]) -> dict[str, Answers]:
        """Of those that were asked about: it takes only so many at once."""
        argv, stdin = render_scontrol(jobs)
        known, invalid = parse_scontrol(self._link.run(argv, stdin=stdin, timeout_s=_ASK_S), jobs)
        told = [job for job in jobs if job in known or job in invalid]
        return {job: Answers(controller=known.get(job), is_invalid=job in invalid) for job in told}

    def _look_up(self, number: str) -> str:
        try:
            ran = self._link.run(("getent", "passwd", number), timeout_s=_NAME_S)
        except BackendError:
            return f"user {number}"
        name = ran.out.partition(":")[0].strip()
        return name if ran.rc == 0 and name else f"user {number}"
