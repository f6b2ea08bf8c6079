"""`gangline server stop` returns when the server is gone, and a server that ends is said to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from gangline.client.embedded import mute
from gangline.rundir.home import Home
from gangline.rundir.serving import is_ending, is_served, mark_ending, server_pid, take_lock


@pytest.fixture
def home(tmp_path: Any) -> Home:
    made = Home(tmp_path / "home")
    made.create()
    return made


def test_a_holder_that_ends_is_told_from_one_that_is_silent(home: Home):
    lock = take_lock(home)
    assert lock is not None
    assert not is_ending(home)
    assert "does not answer" in str(mute(home))
    mark_ending(home)
    assert is_ending(home)
    assert server_pid(home) == os.getpid()
    assert "is ending" in str(mute(home))
    os.close(lock)
    assert not is_ending(home)
    assert mute(home) is None
    again = take_lock(home)
    assert again is not None
    assert not is_ending(home)
    os.close(again)


def test_another_servers_lock_is_not_marked(home: Home):
    home.lock.write_text("1\n")
    mark_ending(home)
    assert home.lock.read_text() == "1\n"


def call(home: Home, verb: str) -> str:
    env = {**os.environ, "GANGLINE_HOME": str(home.path)}
    words = [sys.executable, "-c", "import sys; from gangline.cli.main import main; sys.exit(main())", "server", verb]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False).stdout


def test_stop_returns_when_the_server_is_gone(home: Home):
    try:
        call(home, "start")
        assert is_served(home)
        assert "The server is stopped." in call(home, "stop")
        assert not is_served(home)
        assert "No server runs" in call(home, "status")
    finally:
        if (pid := server_pid(home)) is not None:
            os.kill(pid, signal.SIGKILL)
