import os
import subprocess
import sys
from pathlib import Path

from gangline.rundir.home import Home
from gangline.rundir.serving import ServerInfo, read_live_server, read_server, write_server


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
