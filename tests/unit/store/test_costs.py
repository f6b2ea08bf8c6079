"""What is asked of the database, in statements: ten times a second while nothing happens, and for many runs at once."""

import pytest

from gangline.store.rows import IngestBatch, Points
from gangline.store.store import Store


def batch(number: int, *, name: str = "loss") -> IngestBatch:
    """The piece with that number of one rank's metrics."""
    points = Points(rank=0, name=name, attempt=0, steps=[number], times=[float(number)], values=[0.5 * number])
    return IngestBatch(cursors={"metrics/rank-00000.jsonl": (number, number + 1)}, points=[points], step=number)


@pytest.fixture
def fleet(store, new_run):
    def make(size: int) -> list[str]:
        names = [f"r-{size}-{number}" for number in range(size)]
        for name in names:
            store.add_run(new_run(name))
        assert store.ingest_all(dict.fromkeys(names, batch(0))) == {*names}
        return names

    return make


def test_many_runs_cost_as_many_statements_as_one(store, fleet, statements):
    counts = []
    for size in (1, 60):
        names = fleet(size)
        statements.clear()
        assert store.ingest_all(dict.fromkeys(names, batch(1))) == {*names}
        counts.append(len(statements))
        assert statements.writes() == 1
    assert counts[0] == counts[1]
    for name in names:
        assert store.run(name).step == 1
        assert [cell[:2] for cell in store.chart(name, "loss", rank=0, buckets=9)] == [(0, 0), (1, 1)]


def test_a_run_that_was_read_by_another_is_left_out_and_the_others_are_stored(store, fleet):
    first, second, third = fleet(3)
    assert store.ingest(second, batch(1, name="other"))
    assert store.ingest_all(dict.fromkeys((first, second, third), batch(1))) == {first, third}
    assert [store.newest_metrics(run)["loss"] for run in (first, second, third)] == [0.5, 0.0, 0.5]
    assert store.cursors(second) == {"metrics/rank-00000.jsonl": 2}


def test_what_did_not_change_is_not_asked_again(store, new_run, statements, tmp_path):
    store.add_run(new_run("r-1"))
    questions = (store.held_runs, store.waiting_runs, store.queue_mark)
    answers = [ask() for ask in questions]
    statements.clear()
    assert [ask() for ask in questions] == answers
    assert not statements
    other = Store.open(tmp_path / "gangline.db")
    other.add_run(new_run("r-2"))
    other.close()
    assert [run.id for run in store.waiting_runs()] == ["r-1", "r-2"]
    assert store.queue_mark() != answers[2]
