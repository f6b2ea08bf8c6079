"""Series of points: stored exactly, charted in a bounded number of buckets."""

import math
import random
from array import array

import pytest

from gangline.store.chart import CHUNK_POINTS, cell_of, decide_buckets, merge_cells
from gangline.store.metrics import pack_points, unpack_points
from gangline.store.rows import IngestBatch, Points


def points(steps, values, *, name="loss", rank=0, attempt=0):
    return Points(
        rank=rank, name=name, attempt=attempt, steps=list(steps), times=[1.0] * len(values), values=list(values)
    )


@pytest.fixture
def logged(store, new_run):
    store.add_run(new_run())

    def log(*batch):
        assert store.ingest("r-1", IngestBatch(cursors={}, points=batch))

    return log


def chart(store, buckets, **where):
    return decide_buckets(store.chart("r-1", "loss", rank=0, buckets=buckets, **where), buckets)


def test_packed_points_come_back():
    blob = pack_points([1, -(2**63)], [0.5, 1.5], [math.inf, 2.0])
    assert [list(part) for part in unpack_points(blob)] == [[1, -(2**63)], [0.5, 1.5], [math.inf, 2.0]]


def test_few_points_are_shown_one_by_one(store, logged):
    logged(points([0, 5, 10], [3.0, 2.0, 1.0]))
    assert chart(store, 10) == [(0, 0, 1, 1, 3.0, 3.0, 3.0), (5, 5, 1, 1, 2.0, 2.0, 2.0), (10, 10, 1, 1, 1.0, 1.0, 1.0)]


@pytest.mark.parametrize("size", [1, 7, CHUNK_POINTS - 1, CHUNK_POINTS, CHUNK_POINTS + 1, 3 * CHUNK_POINTS])
@pytest.mark.parametrize("batch", [1, 100, CHUNK_POINTS, 1000])
def test_points_survive_in_batches_of_any_size(store, logged, size, batch):
    values = [float(number) for number in range(size)]
    for start in range(0, size, batch):
        logged(points(range(start, min(start + batch, size)), values[start : start + batch]))
    cells = store.chart("r-1", "loss", rank=0, buckets=size)
    assert [cell[0] for cell in cells] == list(range(size))
    assert [cell[4] for cell in cells] == values


@pytest.mark.parametrize("buckets", [1, 2, 3, 50, 199, 200, 1000])
def test_a_chart_has_at_most_the_buckets_asked_for_and_all_points(store, logged, buckets):
    randomness = random.Random(buckets)
    values = [randomness.gauss(0, 1) for _ in range(60_000)]
    logged(points(range(60_000), values))
    cells = chart(store, buckets)
    assert len(cells) <= buckets
    assert len(cells) > buckets * 0.8
    assert sum(cell[2] for cell in cells) == 60_000
    assert cells[0][0] == 0
    assert cells[-1][1] == 59_999
    for first, last, count, _, low, high, mean in cells:
        part = values[first : last + 1]
        assert (count, low, high) == (len(part), min(part), max(part))
        assert mean == pytest.approx(math.fsum(part) / len(part), abs=1e-9)


def test_a_million_points_make_a_chart_of_few_buckets_without_reading_the_points(store, logged):
    for start in range(0, 1_000_000, 100_000):
        logged(points(range(start, start + 100_000), [float(start)] * 100_000))
    cells = chart(store, 200)
    assert len(cells) == 200
    assert sum(cell[2] for cell in cells) == 1_000_000
    assert (cells[0][4], cells[-1][5]) == (0.0, 900_000.0)
    assert len(store.chart("r-1", "loss", rank=0, buckets=200)) <= 1_000_000 / CHUNK_POINTS + 1


def test_what_a_restart_did_again_supersedes_what_it_replaces(store, logged):
    logged(points(range(100), [1.0] * 100))
    logged(points(range(60, 120), [2.0] * 60, attempt=1))
    logged(points(range(110, 130), [3.0] * 20, attempt=2))
    cells = store.chart("r-1", "loss", rank=0, buckets=1000)
    assert [cell[0] for cell in cells] == list(range(130))
    assert [cell[6] for cell in cells] == [1.0] * 60 + [2.0] * 50 + [3.0] * 20


def test_a_later_attempt_that_goes_further_back_supersedes_all_between(store, logged):
    logged(points(range(100), [1.0] * 100))
    logged(points(range(80, 120), [2.0] * 40, attempt=1))
    logged(points(range(50, 60), [3.0] * 10, attempt=2))
    cells = store.chart("r-1", "loss", rank=0, buckets=1000)
    assert [cell[6] for cell in cells] == [1.0] * 50 + [3.0] * 10


def test_superseded_points_are_cut_out_of_rollups_too(store, logged):
    logged(points(range(20_000), [1.0] * 20_000))
    logged(points(range(9_999, 15_000), [2.0] * 5_001, attempt=1))
    cells = chart(store, 10)
    assert len(cells) <= 10
    assert sum(cell[2] for cell in cells) == 15_000
    assert cells[-1][1] == 14_999


def test_values_that_are_not_finite_are_counted_but_not_measured(store, logged):
    logged(points([0, 1, 2], [math.nan, 2.0, math.inf]))
    assert merge_cells(store.chart("r-1", "loss", rank=0, buckets=10)) == (0, 2, 3, 1, 2.0, 2.0, 2.0)
    assert store.newest_metrics("r-1") == {"loss": None}


def test_the_newest_value_is_that_of_the_newest_attempt(store, logged):
    logged(points([0], [1.0]), points([0], [5.0], name="other"))
    logged(points([0], [2.0], attempt=1), points([0], [9.0], rank=3))
    assert store.newest_metrics("r-1") == {"loss": 2.0, "other": 5.0}
    assert store.newest_metrics("r-1", rank=3) == {"loss": 9.0}


def test_points_without_steps_are_numbered_on_over_batches_and_attempts(store, logged):
    logged(points([None, None], [1.0, 2.0]))
    logged(points([None], [3.0]))
    logged(points([None, None], [4.0, 5.0], attempt=1))
    assert [cell[0] for cell in store.chart("r-1", "loss", rank=0, buckets=10)] == [0, 1, 2, 3, 4]


def test_means_of_the_largest_numbers_stay_numbers():
    largest = 1.7e308
    cell = cell_of(array("q", [0, 1, 2]), array("d", [largest] * 3))
    assert cell[6] == pytest.approx(largest)
    assert merge_cells([cell, cell])[6] == pytest.approx(largest)


def test_a_metric_that_nobody_logged_is_none(store, logged):
    logged(points([0], [1.0]))
    assert store.chart("r-1", "nothing", rank=0, buckets=10) is None
    assert store.chart("r-1", "loss", rank=1, buckets=10) is None


def test_names_that_are_stored_as_one_are_one_series(store, logged):
    logged(points([0], [1.0], name="x" * 300), points([1], [2.0], name="x" * 301), points([2], [3.0], name="a\0"))
    logged(points([3], [4.0], name="x" * 400))
    assert store.newest_metrics("r-1") == {"x" * 200: 4.0, "a\N{REPLACEMENT CHARACTER}": 3.0}


@pytest.mark.parametrize("buckets", [2, 1000])
def test_steps_that_come_in_any_order_are_charted_by_step(store, logged, buckets):
    steps = [*range(1, 600), -3, 5, 2, 700]
    logged(points(steps, [float(step) for step in steps]))
    cells = store.chart("r-1", "loss", rank=0, buckets=buckets)
    assert [cell[0] for cell in cells] == sorted(cell[0] for cell in cells)
    assert (cells[0][0], max(cell[1] for cell in cells)) == (-3, 700)
