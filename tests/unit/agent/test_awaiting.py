"""Agents whose job began before anybody said what to start."""

import json

from gangline.agent.awaiting import await_launch
from gangline.rundir.layout import RunDir
from gangline.testing import FakeClock


def wait(run, clock, *, patience_s=600.0, meanwhile=lambda: None):
    def sleep(delay_s):
        clock.advance(delay_s)
        meanwhile()

    return await_launch(run, 1, patience_s, sleep=sleep, monotonic=clock.monotonic)


def result_of(run, attempt, **keys):
    path = run.attempt(attempt).result
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"launch": 0, **keys}))


def test_it_begins_as_soon_as_it_is_told_what(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    result_of(run, 0, next="relaunch")

    def tell():
        if clock.monotonic() > 100:
            run.launch(1).spec.parent.mkdir(parents=True, exist_ok=True)
            run.launch(1).spec.write_text("{}")

    began = clock.monotonic()
    clock.advance(-began)
    assert wait(run, clock, meanwhile=tell) == ""
    assert wait(run, clock) == ""


def test_a_run_that_is_over_needs_it_no_more(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    result_of(run, 0, next="restart")
    result_of(run, 1, next="end")
    before = clock.monotonic()
    assert "the run is over" in wait(run, clock)
    assert clock.monotonic() == before


def test_it_does_not_wait_for_ever(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    run.attempt(0).path.mkdir(parents=True)
    before = clock.monotonic()
    assert "not needed within 600 s" in wait(run, clock)
    assert 600 <= clock.monotonic() - before < 602


def test_a_result_that_cannot_be_read_says_nothing(tmp_path):
    run, clock = RunDir(tmp_path), FakeClock()
    result_of(run, 0, next="end")
    run.attempt(0).result.write_text("{")
    assert "not needed within 5 s" in wait(run, clock, patience_s=5.0)
