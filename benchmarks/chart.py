"""A chart of one million points of one metric, from the request to the buckets in the client's hands."""

from __future__ import annotations

import statistics
import time

from measure import Row, new_place, wait_until

POINTS, BUCKETS, TIMES = 1_000_000, 200, 7


def measure() -> list[Row]:
    with new_place() as place:
        project = place.project("points.py")
        began = time.perf_counter()
        place.gangline("submit", "points.py", str(POINTS), cwd=project)
        with place.client() as client:
            wait_until(
                lambda: _count(client) == POINTS, what=f"{POINTS:,} points to be there", timeout_s=300, pause_s=0.5
            )
            stored = time.perf_counter() - began
            values = [_query_ms(client) for _ in range(TIMES + 1)][1:]
    return [
        Row(
            what=f"chart query over {POINTS:,} points in at most {BUCKETS} buckets",
            unit="ms",
            ours=statistics.median(values),
            goal="quick",
            samples=TIMES,
            spread=(min(values), max(values)),
            note=f"logged and ingested within {stored:.0f} s of submit",
        )
    ]


def _count(client) -> int:
    names = client.metrics("latest")
    return client.metric("latest", "wave", buckets=1)["count"] if "wave" in names else 0


def _query_ms(client) -> float:
    began = time.perf_counter()
    view = client.metric("latest", "wave", buckets=BUCKETS)
    assert 0 < len(view["buckets"]) <= BUCKETS
    return (time.perf_counter() - began) * 1e3
