from gangline.alone.told import Told, render_event
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import RunDir


def test_what_is_new_comes_once_and_over_attempts(tmp_path):
    run = RunDir(tmp_path)
    told = Told(run, first_attempt=1, ranks=range(2))
    assert told.read(is_over=False) == ([], True)
    for attempt in (0, 1, 2):
        run.attempt(attempt).path.mkdir(parents=True)
        run.attempt(attempt).events(0).parent.mkdir(parents=True)
        run.attempt(attempt).log(1).write_text(f"attempt {attempt}\n")
        with JournalWriter(run.attempt(attempt).events(0)) as journal:
            journal.write("attempt_ended", outcome="failed", restart_message="no restart is left")
    found = []
    while True:
        items, is_all = told.read(is_over=True)
        found += items
        if is_all:
            break
    assert [text for rank, text in found if rank == 1] == ["attempt 1\n", "attempt 2\n"]
    assert [text for rank, text in found if rank is None] == [
        "Attempt 1 failed. no restart is left",
        "Attempt 2 failed. no restart is left",
    ]


def test_only_what_people_want_to_know_is_said():
    assert render_event({"kind": "rank_started", "rank": 0}, 0) == ""
    assert render_event({"kind": "warning", "text": "The disk is nearly full."}, 0) == "The disk is nearly full."
    assert (
        render_event({"kind": "dashboard", "text": "It is at http://127.0.0.1:1."}, 0) == "It is at http://127.0.0.1:1."
    )
    assert render_event({"kind": "first_failure", "message": "Rank 1 failed."}, 0) == "Rank 1 failed."
