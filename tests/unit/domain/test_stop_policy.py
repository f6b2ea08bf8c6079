from __future__ import annotations

import pytest

from gangline.domain.spec import StopPolicy


@pytest.mark.parametrize(
    ("limit_s", "notice_s", "expected_s"),
    [
        (None, None, 0.0),
        (None, 5.0, 0.0),
        (100.0, None, 10.0),
        (86_400.0, None, 60.0),
        (100.0, 0.0, 0.0),
        (10.0, 8.0, 8.0),
    ],
)
def test_how_long_before_the_limit_ranks_are_told(
    limit_s: float | None, notice_s: float | None, expected_s: float
) -> None:
    assert StopPolicy(time_limit_s=limit_s, time_limit_notice_s=notice_s).notice_s() == expected_s
