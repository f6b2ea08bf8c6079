"""The decision table, row by row."""

from dataclasses import replace
from itertools import product

import pytest

from gangline.control.decide import decide, decide_used
from gangline.control.facts import Cancel, Change, Facts, Submit
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import TERMINAL, TRANSITIONS, Budget, Phase, Reason
from gangline.domain.spec import RestartPolicy
from gangline.store.rows import AttemptRow, Move, RunRow

HANDLE = {"backend": "fake", "version": 1, "data": {}}
ALIVE = Observation(liveness=Liveness.ALIVE)
GONE = Observation(liveness=Liveness.GONE)
SILENT = Observation(liveness=Liveness.UNKNOWN)
STARTED = AttemptRow(number=0, launch=0, started=1.0)
RUNNING = replace(STARTED, running=2.0)
RESTARTS = replace(RUNNING, outcome="failed", reason="killed", message="Rank 1 died.", next="restart", ended=90.0)
ENDS = replace(RESTARTS, next="end", exit_code=3)
SUCCEEDS = replace(RUNNING, outcome="succeeded", next="end", exit_code=0, ended=90.0)
RELAUNCHES = replace(RESTARTS, next="relaunch", reason="unhealthy_node", budget="infrastructure", next_delay_s=4.0)
LOSES = replace(RELAUNCHES, reason="node_lost")
PREEMPTS = replace(RELAUNCHES, outcome="preempted", reason="preempted")
NEXT = replace(RUNNING, number=1)


def run_row(phase=Phase.RUNNING, **changes):
    empty = dict.fromkeys(RunRow.__dataclass_fields__)
    values = {
        **empty,
        "id": "r", "phase": phase, "message": "", "version": 3, "created": 0.0, "launch": 0, "launch_restarts": {},
        "budget_from": 0, "nodes": 1, "procs_per_node": 2, "handle": HANDLE, "placement": [[]], "labels": {},
    }  # fmt: skip
    return RunRow(**{**values, **changes})


def facts(phase=Phase.RUNNING, *attempts, run=None, **keys):
    values = {"observation": ALIVE, "was_prepared": True, "now": 100.0, **keys}
    return Facts(run=run_row(phase, **(run or {})), attempts=attempts, **values)


def lost(phase, *attempts, **keys):
    return facts(phase, *attempts, **{"observation": GONE, "confirmed_gone": True, **keys})


NO_HANDLE = {"run": {"handle": None}, "observation": None}
NO_PLACE = {"run": {"handle": None, "placement": None}, "observation": None}
NO_RESTARTS = {"policy": RestartPolicy(max_infrastructure_restarts=0)}

TABLE = [
    ("starting, nothing seen yet", facts(Phase.STARTING), []),
    ("starting, attempt begun", facts(Phase.STARTING, STARTED), []),
    ("starting, attempt runs", facts(Phase.STARTING, RUNNING), [Phase.RUNNING]),
    ("starting, no handle noted", facts(Phase.STARTING, **NO_HANDLE), [Submit]),
    ("starting, no handle noted, yet it runs", facts(Phase.STARTING, RUNNING, **NO_HANDLE), [Submit, Phase.RUNNING]),
    ("no handle noted, wants another launch", facts(Phase.RUNNING, RELAUNCHES, **NO_HANDLE), [Submit]),
    ("running", facts(Phase.RUNNING, RUNNING), []),
    ("in-place restart", facts(Phase.RUNNING, RESTARTS), [Phase.RESTARTING]),
    (
        "in-place restart, next attempt not yet running",
        facts(Phase.RUNNING, RESTARTS, replace(STARTED, number=1)),
        [Phase.RESTARTING],
    ),
    ("in-place restart, over already", facts(Phase.RESTARTING, RESTARTS, NEXT), [Phase.RUNNING]),
    (
        "in-place restart, missed",
        facts(Phase.RUNNING, RESTARTS, NEXT, run={"told_attempt": 0}),
        [Phase.RESTARTING, Phase.RUNNING],
    ),
    ("ended well", facts(Phase.RUNNING, SUCCEEDS), [Phase.SUCCEEDED]),
    ("ended well between two looks", facts(Phase.STARTING, SUCCEEDS), [Phase.SUCCEEDED]),
    ("ended badly", facts(Phase.RUNNING, ENDS), [Phase.FAILED]),
    ("ended badly while the backend is silent", facts(Phase.UNKNOWN, ENDS, observation=SILENT), [Phase.FAILED]),
    (
        "stopped by its leader",
        facts(Phase.RUNNING, replace(ENDS, outcome="stopped", reason="time_limit")),
        [Phase.STOPPED],
    ),
    ("wants another launch, agents live", facts(Phase.RUNNING, RELAUNCHES), [Phase.RESTARTING]),
    ("wants another launch, told already", facts(Phase.RESTARTING, RELAUNCHES), []),
    ("wants another launch, agents linger", facts(Phase.RESTARTING, RELAUNCHES, over_for_s=16.0), [Cancel]),
    ("has lost a node, the others go", facts(Phase.RESTARTING, LOSES, over_for_s=2.0), []),
    ("has lost a node, that cannot hear it", facts(Phase.RESTARTING, LOSES, over_for_s=4.0), [Cancel]),
    ("over, having lost a node", facts(Phase.FAILED, replace(LOSES, next="end"), over_for_s=4.0), [Cancel]),
    ("wants another launch, agents gone", lost(Phase.RESTARTING, RELAUNCHES), [Change]),
    ("wants another launch, all at once", lost(Phase.RUNNING, RELAUNCHES), [Phase.RESTARTING]),
    ("preempted, agents live", facts(Phase.RUNNING, PREEMPTS), [Phase.PREEMPTED]),
    ("preempted, agents gone", lost(Phase.PREEMPTED, PREEMPTS), [Phase.QUEUED]),
    ("preempted, all at once", lost(Phase.RUNNING, PREEMPTS), [Phase.PREEMPTED, Phase.QUEUED]),
    ("gone once", facts(Phase.RUNNING, RUNNING, observation=GONE), []),
    ("gone for sure", lost(Phase.RUNNING, RUNNING), [Phase.RESTARTING]),
    ("gone during an in-place restart", lost(Phase.RESTARTING, RESTARTS), [Change]),
    ("gone while unknown", lost(Phase.UNKNOWN, RUNNING), [Phase.RESTARTING]),
    ("gone, no budget", lost(Phase.RUNNING, RUNNING, **NO_RESTARTS), [Phase.FAILED]),
    ("gone before an attempt", lost(Phase.STARTING), [Phase.RESTARTING]),
    (
        "cancelled from outside",
        lost(Phase.RUNNING, RUNNING, observation=replace(GONE, cancelled=True)),
        [Phase.STOPPED],
    ),
    (
        "cancelled from outside, leader wants more",
        lost(Phase.RUNNING, RELAUNCHES, observation=replace(GONE, cancelled=True)),
        [Phase.STOPPED],
    ),
    (
        "taken away",
        lost(Phase.RUNNING, RUNNING, observation=replace(GONE, preempted=True)),
        [Phase.PREEMPTED, Phase.QUEUED],
    ),
    ("silent", facts(Phase.RUNNING, RUNNING, observation=SILENT, unknown_for_s=29.0), []),
    ("silent for long", facts(Phase.RUNNING, RUNNING, observation=SILENT, unknown_for_s=31.0), [Phase.UNKNOWN]),
    ("silent for ever", facts(Phase.UNKNOWN, RUNNING, observation=SILENT, unknown_for_s=999.0), []),
    ("heard again", facts(Phase.UNKNOWN, RUNNING), [Phase.RUNNING]),
    ("heard again, restarting", facts(Phase.UNKNOWN, RESTARTS), [Phase.RESTARTING]),
    ("heard again, nothing begun", facts(Phase.UNKNOWN), [Phase.STARTING]),
    ("waits for the place of its next launch", facts(Phase.RESTARTING, **NO_PLACE), []),
    ("stopping", facts(Phase.STOPPING, RUNNING, run={"stop_asked": 90.0}), []),
    ("stopping, out of time", facts(Phase.STOPPING, RUNNING, run={"stop_asked": 50.0}), [Cancel]),
    ("stopping, ended well", facts(Phase.STOPPING, SUCCEEDS), [Phase.SUCCEEDED]),
    ("stopping, leader says stopped", facts(Phase.STOPPING, replace(ENDS, outcome="stopped")), [Phase.STOPPED]),
    ("stopping, gone", lost(Phase.STOPPING, RUNNING), [Phase.STOPPED]),
    ("stopping, leader wants more", lost(Phase.STOPPING, RELAUNCHES), [Phase.STOPPED]),
    ("stopping, silent", facts(Phase.STOPPING, RUNNING, observation=SILENT, run={"stop_asked": 95.0}), []),
    ("stopping, no handle, agents possible", facts(Phase.STOPPING, **NO_HANDLE), [Submit]),
    ("stopping, no handle, nothing prepared", facts(Phase.STOPPING, **NO_HANDLE, was_prepared=False), [Phase.STOPPED]),
    ("stopping, no place", facts(Phase.STOPPING, **NO_PLACE), [Phase.STOPPED]),
    ("over, agents live", facts(Phase.SUCCEEDED, SUCCEEDS, over_for_s=14.0), []),
    ("over, agents linger", facts(Phase.SUCCEEDED, SUCCEEDS, over_for_s=16.0), [Cancel]),
    ("over, agents gone", lost(Phase.SUCCEEDED, SUCCEEDS), [Change]),
    ("over, place still held", facts(Phase.FAILED, was_prepared=False, **NO_HANDLE), [Change]),
    ("over, agents possible, nothing begun", facts(Phase.FAILED, **NO_HANDLE), [Submit]),
    ("over, agents possible, no handle", facts(Phase.FAILED, ENDS, **NO_HANDLE), [Submit]),
    ("over and done", facts(Phase.STOPPED, **NO_PLACE), []),
]


@pytest.mark.parametrize(("known", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(known, expected):
    steps = decide(known)
    assert [step.phase if isinstance(step, Move) else type(step) for step in steps] == expected
    at = known.run.phase
    for step in steps:
        if isinstance(step, Move):
            assert step.phase in TRANSITIONS[at]
            at = step.phase
            assert step.phase not in TERMINAL - {Phase.SUCCEEDED} or step.reason is not None
            assert step.phase not in TERMINAL or "exit_code" in step.changes


OBSERVATIONS = [None, ALIVE, GONE, SILENT, replace(GONE, cancelled=True), replace(GONE, preempted=True)]
ATTEMPTS = [(), (STARTED,), (RUNNING,), (RESTARTS,), (ENDS,), (SUCCEEDS,), (RELAUNCHES,), (PREEMPTS,), (RESTARTS, NEXT)]


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.QUEUED}))
def test_no_state_leads_to_an_illegal_move(phase):
    for observation, attempts, held in product(OBSERVATIONS, ATTEMPTS, (True, False)):
        if phase is Phase.PREEMPTED and attempts in {(SUCCEEDS,), (RELAUNCHES,)}:
            continue  # a preempted attempt is closed as such; no later result changes that
        changes = {"handle": HANDLE if held else None, "told_attempt": 0, "stop_asked": 1.0, "ended": 1.0}
        known = facts(phase, *attempts, run=changes, observation=observation, confirmed_gone=True, unknown_for_s=99.0)
        at = phase
        for step in decide(known):
            if isinstance(step, Move):
                assert step.phase in TRANSITIONS[at], f"{at} -> {step.phase}"
                at = step.phase


def test_the_end_carries_the_code_and_reason_of_the_leader():
    (move,) = decide(facts(Phase.RUNNING, replace(ENDS, restart_message="no restart: --max-restarts is 0")))
    assert move.reason is Reason.KILLED
    assert move.changes["exit_code"] == 3
    assert move.changes["ended"] == 90.0
    assert move.message == "Rank 1 died. No restart: --max-restarts is 0."


def test_the_next_launch_has_the_next_number_and_waits_its_delay():
    (change,) = decide(lost(Phase.RESTARTING, RELAUNCHES, over_for_s=1.0))
    assert change.changes["launch"] == 1
    assert change.changes["not_before"] == 103.0, "by the server's clock, whatever that of the agents says"
    assert change.changes["handle"] is None


@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
def test_agents_linger_by_the_clock_of_the_server_alone(skew_s):
    told = replace(LOSES, ended=100.0 + skew_s)
    assert decide(facts(Phase.RESTARTING, told, over_for_s=2.0)) == []
    assert [type(step) for step in decide(facts(Phase.RESTARTING, told, over_for_s=4.0))] == [Cancel]


def test_a_job_that_somebody_cancelled_was_not_preempted():
    """Its agents saw the same signal."""
    seen = replace(GONE, cancelled=True, detail="Slurm job 7 was cancelled by alice")
    (move,) = decide(lost(Phase.PREEMPTED, PREEMPTS, observation=seen))
    (attempt,) = move.attempts
    assert (attempt.outcome, attempt.reason, attempt.next) == ("stopped", "stopped_by_user", None)
    assert attempt.message == move.message == "Ended outside Gangline (Slurm job 7 was cancelled by alice)."
    assert attempt.budget is None


def test_a_lost_launch_closes_its_attempt_and_is_counted():
    (move,) = decide(lost(Phase.RUNNING, RUNNING))
    assert move.attempts[0].outcome == "failed"
    assert move.changes["launch_restarts"] == {"infrastructure": 1}


def test_budgets_count_what_leaders_and_server_decided_since_the_last_resume():
    attempts = [
        replace(RESTARTS, budget="user"),
        replace(RELAUNCHES, number=1),
        replace(RESTARTS, number=2, budget="user"),
    ]
    run = run_row(launch_restarts={"infrastructure": 2}, budget_from=1)
    assert decide_used(run, attempts) == {Budget.INFRASTRUCTURE: 3, Budget.USER: 1}


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([{"node": 0, "host": "h1"}], "The agent of attempt 0 (node 0 on h1) is gone, and left no result."),
        (
            [{"node": 1, "host": "h2"}, {"node": 0, "host": "h1"}],
            "The agents of attempt 0 are gone, and left no result; node 0 on h1 led them.",
        ),
        ([{"node": 0, "host": None}], "The agent of attempt 0 is gone, and left no result."),
        ([], "The agents of attempt 0 are gone, and left no result."),
    ],
)
def test_a_lost_leader_is_named_with_its_node_and_host(nodes, says):
    [move] = decide(lost(Phase.RUNNING, replace(RUNNING, nodes=nodes)))
    assert says in move.message


def test_the_backend_says_why_agents_were_told_to_end():
    known = replace(GONE, detail="Slurm job 3 ended as NODE_FAIL: a node of it failed")
    (queued,) = decide(lost(Phase.PREEMPTED, PREEMPTS, observation=known))
    assert queued.message == "Rank 1 died. Slurm job 3 ended as NODE_FAIL: a node of it failed."


@pytest.mark.parametrize(
    ("reason", "said", "ends_with"),
    [
        (None, "a\n\nValueError: x\n", 'left no result (job 3). The last line of their log is "ValueError: x".'),
        (Reason.USER_ERROR, "the line failed", 'job 3). The last line of their log is "the line failed".'),
        (Reason.NODE_LOST, "nvidia-smi cannot be asked", "left no result (job 3)."),
        (Reason.STORAGE, "", "left no result (job 3)."),
        (None, " \n", "left no result (job 3)."),
    ],
)
def test_a_launch_without_a_word_is_told_of_in_sentences(reason, said, ends_with):
    seen = replace(GONE, detail="job 3", reason=reason)
    steps = decide(lost(Phase.RUNNING, RUNNING, observation=seen, agent_words=said))
    [closed] = [one for step in steps for one in getattr(step, "attempts", ())][:1]
    assert closed.message.endswith(ends_with)
    assert "\n" not in closed.message
