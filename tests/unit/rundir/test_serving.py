import os
import subprocess
import sys
from pathlib import Path

from gangline.rundir.home import Home
from gangline.rundir.serving import (
    ServerInfo,
    ensure_token,
    is_ending,
    is_served,
    mark_ending,
    read_live_server,
    read_server,
    server_pid,
    take_lock,
    write_server,
)


def info(pid: int) -> ServerInfo:
    return ServerInfo(pid=pid, port=4711, version="0", started=0.0)


def test_the_address_of_a_dead_server_is_known_but_not_that_of_a_live_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_live_server(home) is None
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    write_server(home, info(int(ended.stdout)))
    assert read_server(home) == info(int(ended.stdout))
    assert read_live_server(home) is None
    write_server(home, info(os.getpid()))
    assert read_live_server(home) == info(os.getpid())


def test_a_folder_has_one_server_which_its_lock_names(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert server_pid(home) is None
    lock = take_lock(home)
    assert lock is not None
    assert take_lock(home) is None
    assert server_pid(home) == os.getpid()
    os.close(lock)
    assert not is_served(home)
    again = take_lock(home)
    assert again is not None
    os.close(again)


def test_what_a_dead_server_left_in_the_lock_says_nothing_of_the_next(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.lock.write_text("4000000000 ending\n")
    lock = take_lock(home)
    assert lock is not None
    assert home.lock.read_text() == f"{os.getpid()}\n"
    assert not is_ending(home)
    mark_ending(home)
    assert is_ending(home)
    os.close(lock)
    assert not is_ending(home)


def test_nobody_marks_the_lock_of_another_server(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.lock.write_text("1\n")
    mark_ending(home)
    assert home.lock.read_text() == "1\n"


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = ensure_token(home)
    assert ensure_token(home) == first
    home.token.chmod(0o640)
    second = ensure_token(home)
    assert second != first
    assert home.token.stat().st_mode & 0o777 == 0o600
