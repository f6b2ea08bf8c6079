from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gangline.domain.errors import InvalidRequest
from gangline.queue.health import HealthPolicy
from gangline.rundir.home import Home
from gangline.rundir.reserve import RESERVE_BYTES
from gangline.server.loop import ReconcileLoop, render_trouble
from gangline.server.settings import Settings

DEADLINE_S = 20.0


class Ticks:
    def __init__(self, *, fail: int = 0) -> None:
        self.count = 0
        self.fail = fail
        self.refused: Exception | None = None
        self.ticked = threading.Semaphore(0)

    def tick(self) -> None:
        self.count += 1
        self.ticked.release()
        if self.count <= self.fail:
            raise RuntimeError("an odd run")

    def busy(self) -> bool:
        return False

    def unstored(self) -> Exception | None:
        return self.refused

    def wait(self) -> None:
        assert self.ticked.acquire(timeout=DEADLINE_S)


def test_a_poke_makes_it_look_at_once(tmp_path):
    loop, ticks = ReconcileLoop(home=tmp_path, busy_s=1000, idle_s=1000), Ticks()
    loop.start(ticks)
    ticks.wait()
    for _ in range(3):
        loop.poke()
        ticks.wait()
    assert loop.close(patience_s=DEADLINE_S)


def test_an_error_is_logged_and_ends_nothing(tmp_path, caplog):
    loop, ticks = ReconcileLoop(home=tmp_path, busy_s=1000, idle_s=1000), Ticks(fail=1)
    with caplog.at_level(logging.ERROR):
        loop.start(ticks)
        ticks.wait()
        loop.poke()
        ticks.wait()
    assert loop.close(patience_s=DEADLINE_S)
    assert "an odd run" in caplog.text


def test_trouble_is_known_until_it_is_over(tmp_path, monkeypatch):
    loop, ticks = ReconcileLoop(home=tmp_path, busy_s=1, idle_s=1), Ticks(fail=1)
    clock = SimpleNamespace(**vars(time) | {"time": iter([60.0, 120.0]).__next__})
    monkeypatch.setattr("gangline.server.loop.time", clock)

    def said() -> str:
        return render_trouble(loop.trouble(), Path("/home"), since=loop.troubled_since())

    loop._tick(ticks)
    assert "`gangline server logs`" in said()
    ticks.refused = OSError(errno.ENOSPC, "No space left on device")
    loop._tick(ticks)
    assert said().startswith("The server cannot store anything in /home: [Errno 28] No space left on device.")
    assert "may be as old as 1970-01-01 00:01:00 UTC" in said()  # since the trouble began, not since the newest tick
    ticks.refused = None
    loop._tick(ticks)
    assert said() == ""


def test_room_is_set_aside_given_up_on_a_full_disk_and_set_aside_again(tmp_path):
    loop, ticks = ReconcileLoop(home=tmp_path, busy_s=1, idle_s=1), Ticks()
    loop._tick(ticks)
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    ticks.refused = OSError(errno.ENOSPC, "No space left on device")
    loop._tick(ticks)
    assert not (tmp_path / "reserve").exists()
    assert loop._wake.is_set()  # what was not stored is tried again at once
    ticks.refused = RuntimeError("an odd run")
    loop._tick(ticks)
    assert (tmp_path / "reserve").exists()


def test_pauses_after_errors_grow_to_a_limit(tmp_path):
    loop, ticks = ReconcileLoop(home=tmp_path, busy_s=0.1, idle_s=5), Ticks(fail=40)
    pauses = [loop._tick(ticks) for _ in range(41)]
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert max(pauses) == 30.0
    assert pauses[-1] == 5


def test_a_tick_that_hangs_does_not_hold_the_server(tmp_path):
    loop, hanging, held = ReconcileLoop(home=tmp_path, busy_s=1, idle_s=1), threading.Event(), threading.Event()

    class Hanging(Ticks):
        def tick(self) -> None:
            held.set()
            hanging.wait(DEADLINE_S)

    loop.start(Hanging())
    assert held.wait(DEADLINE_S)
    assert not loop.close(patience_s=0.01)
    hanging.set()
    assert loop.close(patience_s=DEADLINE_S)


def test_settings_come_from_the_environment(tmp_path):
    settings = Settings.from_env({"GANGLINE_HOME": str(tmp_path), "GANGLINE_SERVER_PORT": "8080"})
    assert (settings.home, settings.port) == (Home(tmp_path), 8080)


@pytest.mark.parametrize("port", ["x", "-1", "65536", "80.5"])
def test_a_port_that_is_none_is_named(port):
    with pytest.raises(InvalidRequest, match="GANGLINE_SERVER_PORT"):
        Settings.from_env({"GANGLINE_SERVER_PORT": port})


@pytest.mark.parametrize("text", ["6.9", "0", "-1", "nan", "inf", "soon"])
def test_a_patience_that_no_leader_could_meet_is_refused(tmp_path, text):
    environ = {"GANGLINE_HOME": str(tmp_path), "GANGLINE_SERVER_LEADER_PATIENCE": text}
    with pytest.raises(InvalidRequest, match="GANGLINE_SERVER_LEADER_PATIENCE"):
        Settings.from_env(environ)
    assert Settings.from_env({**environ, "GANGLINE_SERVER_LEADER_PATIENCE": "7"}).leader_patience_s == 7.0
    assert Settings.from_env({"GANGLINE_HOME": str(tmp_path)}).leader_patience_s == 30.0


def test_when_a_node_is_avoided_is_a_setting(tmp_path):
    environ = {"GANGLINE_HOME": str(tmp_path)}
    assert Settings.from_env(environ).health == HealthPolicy(marks=3, window_s=86_400.0)
    environ |= {"GANGLINE_SERVER_NODE_MARKS": "0", "GANGLINE_SERVER_NODE_WINDOW": "3600"}
    assert Settings.from_env(environ).health == HealthPolicy(marks=0, window_s=3600.0)


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "inf", "nan"])
@pytest.mark.parametrize("name", ["GANGLINE_SERVER_NODE_MARKS", "GANGLINE_SERVER_NODE_WINDOW"])
def test_settings_of_node_health_that_cannot_be_are_refused(name, value):
    if (name, value) == ("GANGLINE_SERVER_NODE_WINDOW", "1.5"):
        return
    with pytest.raises(InvalidRequest, match=f"{name} is `{value}`"):
        Settings.from_env({name: value})
