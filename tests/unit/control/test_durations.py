"""How long a run took: its attempts, without the time between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.control.fold import apply_result
from gangline.control.views import duration_s
from gangline.store.rows import AttemptRow


@pytest.mark.parametrize(
    ("spans", "ended", "took"),
    [
        ([], None, None),
        ([(None, None)], None, None),
        ([(100.0, None)], None, 900.0),
        ([(100.0, 110.0), (500.0, 530.0)], 600.0, 40.0),
        ([(100.0, None), (500.0, None)], 600.0, 500.0),
        ([(100.0, 110.0), (None, None)], None, 10.0),
    ],
)
def test_a_run_took_what_its_attempts_took(spans: Any, ended: float | None, took: float | None):
    class Run:
        pass

    run: Any = Run()
    run.ended = ended
    assert duration_s(run, spans, 1000.0) == took


def test_an_attempt_keeps_its_start_when_it_ends():
    begun = replace(AttemptRow(number=0, launch=0), started=107.0)
    assert apply_result(begun, {"started": 100.0, "ended": 120.0}).started == 107.0
    assert apply_result(AttemptRow(number=0, launch=0), {"started": 100.0, "ended": 120.0}).started == 100.0
