"""What a caller cannot be blamed for, and what it can: numbers past all bounds, and disks that are full."""

import errno

import pytest

from gangline.testing.commands import make_summary

V1 = "/api/v1"
HUGE = 10**24


@pytest.mark.parametrize(
    "call",
    [
        f"/runs?limit={HUGE}",
        f"/runs/a/logs/0?offset={HUGE}",
        f"/runs/a/logs/0?attempt={HUGE}",
        f"/runs/a/logs/0?tail={HUGE}",
        f"/runs/a/logs/0/raw?attempt={HUGE}",
        f"/runs/a/events?after={HUGE}",
        f"/runs/a/events?after=-{HUGE}",
        f"/runs/a/wait?version={HUGE}",
        f"/runs/a/metrics/loss?rank={HUGE}",
        f"/runs/a/follow?after={HUGE}",
        f"/runs/a/follow?attempt={HUGE}",
        f"/runs/a/follow?tail={HUGE}",
        f"/runs/a/follow?offsets=0:{HUGE}",
    ],
)
def test_a_number_past_all_bounds_is_refused(api, call):
    api.commands.runs["a"] = make_summary(id="a")
    answer = api.http.get(f"{V1}{call}")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid_request"


def test_a_full_disk_is_named_and_no_bug_to_report(api, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(api.commands, "list_runs", full)
    answer = api.http.get(f"{V1}/runs")
    assert answer.status_code == 507
    error = answer.json()["error"]
    assert error["code"] == "storage_full"
    assert "No space left" in error["why"]
    assert "Make room" in error["fix"]
    assert "report" not in error["fix"]
