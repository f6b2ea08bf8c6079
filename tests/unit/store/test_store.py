"""What every store must do."""

from itertools import pairwise

import pytest
from sqlalchemy.exc import IntegrityError

from gangline.domain.errors import NotFound
from gangline.domain.phase import IllegalMove, Phase, Reason
from gangline.store.history import MOST_WARNINGS
from gangline.store.rows import AttemptRow, CheckpointRow, IngestBatch, Move, NewEvent, clean_text


def warning(text="w"):
    return NewEvent(time=1.0, kind="warning", message=text)


def test_a_run_comes_back_as_it_was_stored(store, new_run):
    run = store.add_run(new_run(name="Grüße 🚀"))
    assert (run.id, run.name, run.phase, run.version, run.labels) == ("r-1", "Grüße 🚀", Phase.QUEUED, 0, {"a": "b"})
    assert store.run("r-1") == run
    assert store.spec_and_client("r-1") == ({"x": 1}, {"user": "u"})
    assert [event.kind for event in store.events("r-1")] == ["submitted"]


def test_the_same_key_is_the_same_run(store, new_run):
    first = store.add_run(new_run("r-1", key="k"))
    assert store.add_run(new_run("r-2", key="k")) == first
    assert store.run_by_key("k") == first
    assert store.run_by_key("other") is None
    assert len(store.events("r-1")) == 1


def test_an_id_that_is_taken_is_an_error(store, new_run):
    store.add_run(new_run("r-1", key="k"))
    with pytest.raises(IntegrityError):
        store.add_run(new_run("r-1", key="other"))


def test_what_is_not_there_is_not_found(store):
    for call in (lambda: store.run("x"), lambda: store.spec_and_client("x")):
        with pytest.raises(NotFound):
            call()


def test_a_move_writes_state_event_and_columns_together(store, new_run):
    run = store.add_run(new_run())
    moved = store.move(run, Move(phase=Phase.STARTING, message="Go.", changes={"placement": [["0"]]}), at=5.0)
    assert (moved.phase, moved.version, moved.message, moved.placement) == (Phase.STARTING, 1, "Go.", [["0"]])
    (_, event) = store.events(run.id)
    assert (event.kind, event.time, event.data) == ("phase", 5.0, {"old": "queued", "new": "starting", "reason": None})


def test_a_move_from_what_is_no_longer_true_is_dropped(store, new_run):
    run = store.add_run(new_run())
    assert store.move(run, Move(phase=Phase.STOPPED, reason=Reason.STOPPED_BY_USER), at=1.0) is not None
    assert store.move(run, Move(phase=Phase.STARTING), at=1.0) is None
    assert not store.change(run, {"launch": 7})
    assert store.run(run.id).phase is Phase.STOPPED
    assert len(store.events(run.id)) == 2


def test_an_illegal_move_raises_and_writes_nothing(store, new_run):
    run = store.add_run(new_run())
    with pytest.raises(IllegalMove):
        store.move(run, Move(phase=Phase.SUCCEEDED), at=1.0)
    assert store.run(run.id) == run


def test_only_a_move_changes_the_phase(store, new_run):
    run = store.add_run(new_run())
    with pytest.raises(ValueError, match="only `move`"):
        store.change(run, {"phase": "running"})


def test_a_handle_is_noted_although_the_run_was_moved_meanwhile(store, new_run):
    run = store.add_run(new_run())
    store.move(run, Move(phase=Phase.STARTING), at=1.0)
    assert store.record_handle(run.id, 0, {"a": 1})
    assert not store.record_handle(run.id, 1, {"a": 2})
    assert store.run(run.id).handle == {"a": 1}


def test_held_and_waiting_runs(store, new_run):
    queued = store.add_run(new_run("queued", created=2.0))
    urgent = store.add_run(new_run("urgent", created=3.0, priority=5))
    starting = store.move(
        store.add_run(new_run("starting")), Move(phase=Phase.STARTING, changes={"placement": [[]]}), at=1.0
    )
    between = store.move(starting, Move(phase=Phase.RESTARTING, changes={"placement": None}), at=1.0)
    ending = store.move(store.add_run(new_run("ending")), Move(phase=Phase.STARTING), at=1.0)
    store.record_handle("ending", 0, {"a": 1})
    ended = store.move(ending, Move(phase=Phase.SUCCEEDED), at=1.0)
    assert [run.id for run in store.held_runs()] == ["ending", "starting"]
    assert [run.id for run in store.waiting_runs()] == ["urgent", "starting", "queued"]
    assert store.counts() == (1, 2)
    store.change(ended, {"handle": None})
    assert [run.id for run in store.held_runs()] == [between.id]
    assert {queued.id, urgent.id} < {run.id for run in store.list_runs()}


def test_the_mark_of_the_queue_sees_every_change_that_matters(store, new_run):
    marks = [store.queue_mark()]
    run = store.add_run(new_run())
    marks.append(store.queue_mark())
    run = store.move(run, Move(phase=Phase.STARTING, changes={"placement": [[]]}), at=1.0)
    marks.append(store.queue_mark())
    store.change(run, {"placement": None})
    marks.append(store.queue_mark())
    assert all(before != after for before, after in pairwise(marks))


def test_a_batch_is_stored_with_its_offsets_or_not_at_all(store, new_run):
    store.add_run(new_run())
    attempt = AttemptRow(number=0, launch=0, started=1.0, ranks=[{"rank": 0}], nodes=[{"node": 0}])
    batch = IngestBatch(cursors={"a": (0, 10)}, attempts=[attempt], events=[warning()], attempt=0, step=3, started=2.0)
    assert store.ingest("r-1", batch)
    assert not store.ingest("r-1", batch)
    assert store.cursors("r-1") == {"a": 10}
    assert store.attempts("r-1") == [attempt]
    assert [event.kind for event in store.events("r-1")] == ["submitted", "warning"]
    assert store.ingest(
        "r-1", IngestBatch(cursors={"a": (10, 20), "b": (0, 5)}, step=4, started=9.0, attempt=1, attempt_nodes=3)
    )
    run = store.run("r-1")
    assert (run.step, run.attempt, run.attempt_nodes, run.started) == (4, 1, 3, 2.0)


def test_a_batch_with_one_offset_that_has_moved_changes_nothing(store, new_run):
    store.add_run(new_run())
    store.ingest("r-1", IngestBatch(cursors={"b": (0, 5)}))
    assert not store.ingest("r-1", IngestBatch(cursors={"a": (0, 10), "b": (0, 7)}, events=[warning()]))
    assert store.cursors("r-1") == {"b": 5}
    assert len(store.events("r-1")) == 1


def test_checkpoints_are_kept_in_numeric_order_and_marked_when_removed(store, new_run):
    store.add_run(new_run())
    rows = [
        CheckpointRow(path=f"/c/{step}", step=step, attempt=0, size_bytes=1, num_files=1, time=1.0, duration_s=None)
        for step in (10000, 9900)
    ]
    store.ingest("r-1", IngestBatch(cursors={}, checkpoints=rows))
    store.ingest("r-1", IngestBatch(cursors={}, checkpoints=rows[:1], removed_checkpoints=["/c/9900", "/c/unknown"]))
    assert [(row.step, row.kept) for row in store.checkpoints("r-1")] == [(9900, False), (10000, True)]


def test_warnings_do_not_drown_the_history(store, new_run):
    store.add_run(new_run())
    for _ in range(3):
        store.add_events("r-1", [*[warning()] * (MOST_WARNINGS - 50), NewEvent(time=1.0, kind="phase", message="p")])
    events = store.events("r-1")
    warnings = [event for event in events if event.kind == "warning"]
    assert len(warnings) == MOST_WARNINGS
    assert "not listed here" in warnings[-1].message
    assert sum(event.kind == "phase" for event in events) == 3
    assert [event.seq for event in events] == list(range(len(events)))


def test_events_can_be_read_from_a_number_on(store, new_run):
    store.add_run(new_run())
    store.add_events("r-1", [warning("a"), warning("b")])
    assert [event.message for event in store.events("r-1", after=1)] == ["b"]


def test_text_that_no_database_takes_is_made_harmless(store, new_run):
    store.add_run(new_run(name="nul \0 and \udcff"))
    store.add_events("r-1", [warning("\0\ud800")])
    store.ingest("r-1", IngestBatch(cursors={}, attempts=[AttemptRow(number=0, launch=0, message="a\0\udcff")]))
    assert "\0" not in store.run("r-1").name
    assert clean_text("plain ü") == "plain ü"


def test_a_prefix_is_taken_literally(store, new_run):
    store.add_run(new_run("ab-1"))
    store.add_run(new_run("ab-2"))
    assert store.ids_like("ab-") == ["ab-1", "ab-2"]
    assert store.ids_like("a%") == []
    assert store.ids_like("__-") == []


def test_runs_are_found_by_a_part_of_their_name(store, new_run):
    for name in ("llama-ft", "LLAMA eval", "100%", "100 percent", "a_b", "axb"):
        store.add_run(new_run(name, name=name))

    def found(part: str) -> set[str]:
        return {run.name for run in store.list_runs(name=part)}

    assert found("llama") == found("LaMa") == {"llama-ft", "LLAMA eval"}
    assert found("%") == {"100%"}
    assert found("a_b") == {"a_b"}
    assert found("nothing") == set()


def test_runs_are_found_by_their_labels(store, new_run):
    store.add_run(new_run("one", labels={"team": "nlp", "note": "a b/c.d", "größe": "5"}))
    store.add_run(new_run("two", labels={"team": "nlp"}))
    store.add_run(new_run("three", labels={"note": "team=nlp"}))

    def found(**labels: str) -> set[str]:
        return {run.id for run in store.list_runs(labels=labels)}

    assert found(team="nlp") == {"one", "two"}
    assert found(team="nlp", note="a b/c.d") == found(größe="5") == {"one"}
    assert found(team="nl") == set()
    assert len(store.list_runs(labels={"team": "nlp"}, limit=1)) == 1
