"""Polls of one job, as tests say what Slurm answers."""

from __future__ import annotations

from dataclasses import replace

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.evidence import Answers, Ask, Claim, Footprint, Memory
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.states import parse_state
from gangline.backends.slurm.tokens import Token
from gangline.backends.slurm.truth import decide_question, weigh
from gangline.domain.gang import Liveness

TOKEN = Token(home="0123456789ab", run_id="one-7k3q", launch=0)
CLAIM = Claim(job="7", token=TOKEN, submitted=1000.0, log="/work/runs/one-7k3q/launches/000/job.log")
NOTHING = Footprint()
MARK = ExitMark(exit_code=0, restart=0, time=1100.0)


def job(state, **fields):
    said = {"comment": str(TOKEN), "name": "one-7k3q.0", "submitted": 1000.0, "restarts": 0, "requeues": False}
    return JobRecord(job="7", state=parse_state(state), **{**said, **fields})


def life(state, **fields):
    """A record of accounting, which keeps no comment here."""
    parsed = parse_state(state)
    return JobRecord(job="7", state=parsed, by=parsed.by, **{"name": "one-7k3q.0", "submitted": 1000.0, **fields})


class Case:
    """Polls of one job, every 5 s; the second question is answered as `sacct` and `scontrol` are set."""

    def __init__(self, claim=CLAIM, *, has_accounts=True):
        self.claim, self.memory, self.now = claim, Memory(), 0.0
        self.has_accounts = has_accounts
        self.lives, self.controller, self.is_invalid = [], None, False

    def poll(self, queue=None, footprint=NOTHING, *, trouble=""):
        self.now += 5.0
        answers = Answers(is_fresh=not trouble, trouble=trouble, queue=queue, has_accounts=self.has_accounts)
        ask = decide_question(self.claim, self.memory, answers, self.now)
        if ask is Ask.ACCOUNTS:
            answers = replace(answers, asked=ask, lives=self.lives)
        elif ask is Ask.CONTROLLER:
            answers = replace(answers, asked=ask, controller=self.controller, is_invalid=self.is_invalid)
        self.memory, seen = weigh(self.claim, self.memory, answers, footprint, self.now)
        return seen

    def until_gone(self, queue=None, footprint=NOTHING, *, most=20):
        for number in range(1, most + 1):
            seen = self.poll(queue, footprint)
            if seen.liveness is Liveness.GONE:
                return number, seen
        return None, seen
