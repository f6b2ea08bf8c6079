"""The embedded server as a process: how it is found, started, shared, lost and replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.cli.connection import connect as cli_connect
from gangline.client.client import Client
from gangline.client.connection import connect
from gangline.client.submission import prepare, send
from gangline.domain.errors import InvalidRequest, ServerUnreachable, VersionMismatch
from gangline.domain.spec import Resources, RunSpec
from gangline.rundir.home import Home
from gangline.rundir.serving import is_served, read_server, read_token, write_server

pytestmark = pytest.mark.integration
DEADLINE_S = 30.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.01)


def kill(pid: int, sig: int = signal.SIGKILL) -> None:
    os.kill(pid, sig)
    wait_until(lambda: not is_alive(pid), f"pid {pid} ends")


def is_alive(pid: int) -> bool:
    with suppress(ChildProcessError):  # ours to reap, where this process started it
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def state(home: Path) -> Home:
    """A private state folder; its server is gone at the end, checked by `home`."""
    return Home(home)


@pytest.fixture
def join(state: Home) -> Iterator[Callable[..., Client]]:
    """Connects to the state folder as a command would; closed at the end."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(connect(state, **options))


@pytest.fixture
def client(join: Callable[..., Client]) -> Client:
    return join()


def test_the_first_command_starts_a_server_for_its_owner_alone(state, record_property, capsys, join):
    begin = time.monotonic()
    client = join()
    took_s = time.monotonic() - begin
    health = client.health()
    record_property("start_s", took_s)
    with capsys.disabled():
        print(f"\nembedded server: up after {took_s:.2f} s, {health['rss_bytes'] / 1e6:.0f} MB")
    assert health["home"] == str(state.path)
    assert [path.stat().st_mode & 0o777 for path in (state.path, state.token, state.server)] == [0o700, 0o600, 0o600]
    assert client.url.startswith("http://127.0.0.1:")


def test_the_second_command_finds_it(client, join):
    assert join().health()["pid"] == join(start=False).health()["pid"] == client.health()["pid"]


def test_many_commands_at_once_make_one_server(state):
    code = "from gangline.client import connect; print(connect().health()['pid'])"
    env = {**os.environ, "GANGLINE_HOME": str(state.path)}

    def command(_: int) -> str:
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr

    with ThreadPoolExecutor(5) as pool:
        pids = set(pool.map(command, range(5)))
    assert len(pids) == 1, pids
    assert read_server(state).pid == int(pids.pop())


def test_what_a_dead_server_left_is_healed(state, client, join):
    pid, token = client.health()["pid"], read_token(state)
    kill(pid)
    assert state.server.exists()
    assert state.lock.exists()
    assert not is_served(state)
    with pytest.raises(ServerUnreachable):
        join(start=False)
    again = join().health()
    assert again["pid"] != pid
    assert read_token(state) == token


def as_if_of_other_code(state: Home) -> None:
    """The address that a server of this version, but started by other code, would have left."""
    write_server(state, replace(read_server(state), code="0123456789abcdef"))


def test_an_idle_server_of_other_code_is_replaced(state, client, join):
    pid = client.health()["pid"]
    as_if_of_other_code(state)
    assert join(start=False).health()["pid"] == pid  # who only looks replaces nothing
    again = join()
    assert again.health()["pid"] != pid
    assert not again.is_of_other_code


def test_a_server_of_other_code_that_has_a_run_stays_and_that_is_said(state, client, tmp_path, monkeypatch, capsys):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("import time; time.sleep(600)")
    prepared = prepare(
        RunSpec(entry="train.py", resources=Resources(procs_per_node=1)),
        root=tmp_path / "project",
        cwd=tmp_path / "project",
    )
    run = send(prepared, client=client)["id"]
    pid = client.health()["pid"]
    as_if_of_other_code(state)
    monkeypatch.setenv("GANGLINE_HOME", str(state.path))
    with cli_connect() as found:
        assert found.health()["pid"] == pid
    assert "started by other code of this version" in capsys.readouterr().err
    client.stop(run, grace_s=0)
    assert client.wait(run, timeout_s=DEADLINE_S)["phase"] == "stopped"


@pytest.mark.parametrize("left", [b"", b"{", b"[1]", b'{"pid": 1}', b"\xff\xfe"])
def test_a_damaged_address_is_healed(state, left, join):
    state.create()
    state.server.write_bytes(left)
    state.lock.write_text("nonsense")
    assert join().health()["runs_live"] == 0


def test_a_client_goes_on_over_the_death_of_its_server(client):
    first = client.health()["pid"]
    kill(first)
    second = client.health()["pid"]
    assert second != first
    assert client.list_runs() == []


def test_a_restarted_server_keeps_its_port_if_it_can(state, client, join):
    port = read_server(state).port
    kill(client.health()["pid"])
    with join() as again:
        assert again.url.endswith(f":{port}")
        kill(again.health()["pid"])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert not join().url.endswith(f":{port}")


def test_the_token_of_a_dead_server_is_not_sent_to_who_has_its_port_now(state, client, join):
    port = read_server(state).port
    kill(client.health()["pid"])
    heard = []
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        other.settimeout(0.2)
        join().health()
        with pytest.raises(TimeoutError):
            heard.append(other.accept())
    assert heard == []


def test_a_token_that_others_could_read_is_replaced(state, client, join):
    before = read_token(state)
    kill(client.health()["pid"])
    state.token.chmod(0o644)
    join().health()
    assert state.token.stat().st_mode & 0o777 == 0o600
    assert read_token(state) != before


def test_a_token_that_lies_open_beside_a_live_server_is_closed(state, client, join):
    state.token.chmod(0o644)
    assert join().health()["pid"] == client.health()["pid"]
    assert state.token.stat().st_mode & 0o777 == 0o600


def test_a_server_of_another_version_is_named_and_can_be_stopped(state, join):
    state.create()
    code = (
        "import gangline.domain.version as version; version.VERSION = '9.9.0'\n"
        "from gangline.server.main import main; main()"
    )
    env = {**os.environ, "GANGLINE_HOME": str(state.path)}
    server = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        wait_until(state.server.exists, "the other version listens")
        with pytest.raises(VersionMismatch, match=r"9\.9\.0.*gangline server stop"):
            join().health()
        looking = join(start=False)
        assert looking.health()["version"] == "9.9.0"
        looking.stop_server()
        assert server.wait(DEADLINE_S) == 0
    finally:
        server.kill()
        server.wait()
    assert join().health()["version"] != "9.9.0"


@pytest.mark.parametrize("way", ["call", signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_cleanly_although_streams_are_open(state, client, tmp_path, way, join):
    run = submit_quiet(client, tmp_path)
    streams = [threading.Thread(target=drain, args=(join(start=False), run)) for _ in range(3)]
    for stream in streams:
        stream.start()
    pid = client.health()["pid"]
    looking = join(start=False)
    if way == "call":
        looking.stop_server()
        wait_until(lambda: not is_alive(pid), "the server ends")
    else:
        kill(pid, way)
    assert "ended; gangs go on" in state.server_log.read_text()
    for stream in streams:
        stream.join(DEADLINE_S)
        assert not stream.is_alive()
    join().stop(run, grace_s=0)
    wait_until(lambda: join().run(run)["phase"] == "stopped", "the run stops")


def submit_quiet(client: Client, folder: Path) -> str:
    (folder / "project").mkdir()
    (folder / "project" / "train.py").write_text("import time\nprint('up')\ntime.sleep(600)\n")
    prepared = prepare(RunSpec(entry="train.py"), root=folder / "project", cwd=folder / "project")
    return send(prepared, client=client)["id"]


def drain(client: Client, run: str) -> None:
    with pytest.raises(ServerUnreachable):
        list(client.follow(run, attempt=0))


def test_a_follow_misses_and_repeats_nothing_over_a_killed_server(state, client, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import os, time\n"
        "for number in range(150):\n"
        "    print(os.environ['RANK'], number, flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    prepared = prepare(RunSpec(entry="train.py", resources=Resources(procs_per_node=2)), root=project, cwd=project)
    run = send(prepared, client=client)["id"]
    heard: dict[int, str] = {0: "", 1: ""}
    events: list[int] = []
    killed = 0
    for item in client.follow(run, attempt=0):
        if "event" in item:
            events.append(item["event"]["seq"])
        if "text" in item:
            heard[item["rank"]] += item["text"]
        if killed < 2 and len(heard[0]) > 150 * (killed + 1):
            killed += 1
            kill(read_server(state).pid)
    assert killed == 2
    assert item["end"]["phase"] == "succeeded"
    for rank, text in heard.items():
        assert text == "".join(f"{rank} {number}\n" for number in range(150))
    assert events == sorted(set(events))


def test_the_server_keeps_nothing_of_the_shell_that_started_it(state, monkeypatch, join):
    monkeypatch.setenv("MY_API_KEY", "hunter2")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    pid = join().health()["pid"]
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"hunter2" not in environ
    assert b"NCCL_DEBUG" not in environ
    assert Path(f"/proc/{pid}/cwd").readlink() == state.path
    assert os.getsid(pid) == pid


def test_a_server_that_cannot_start_says_why(state, join):
    state.create()
    state.database.mkdir()
    with pytest.raises(ServerUnreachable) as raised:
        join()
    assert "exit code" in raised.value.why
    assert str(state.server_log) in raised.value.fix
    assert "database" in raised.value.fix


def test_a_port_that_was_asked_for_and_is_taken_is_named(monkeypatch, free_port, join):
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        monkeypatch.setenv("GANGLINE_SERVER_PORT", str(free_port))
        with pytest.raises(ServerUnreachable) as raised:
            join()
    assert f"Port {free_port}" in raised.value.fix


def test_a_state_folder_that_cannot_be_written_is_named():
    with pytest.raises(InvalidRequest, match=r"cannot be used.*GANGLINE_HOME"):
        connect(Home(Path("/proc/gangline-home")))


def test_stop_and_the_next_command_may_follow_each_other_closely(client, join):
    pids = [client.health()["pid"]]
    for _ in range(3):
        join(start=False).stop_server()
        pids.append(join().health()["pid"])
    assert len(set(pids)) == 4


def gangline(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GANGLINE_HOME": str(home.path)}
    return subprocess.run(
        [str(Path(sys.executable).with_name("gangline")), *words], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("lost", ["server", "token"])
def test_a_server_that_lives_and_cannot_be_reached_is_named_and_ended_by_force(state, client, lost, join):
    pid = client.health()["pid"]
    getattr(state, lost).unlink()
    status = gangline(state, "server", "status")
    assert status.returncode == 69
    assert f"pid {pid} holds the lock of {state.path} but does not answer" in status.stdout + status.stderr
    stop = gangline(state, "server", "stop")
    assert stop.returncode == 69
    assert "--force" in stop.stderr
    with pytest.raises(ServerUnreachable, match=f"pid {pid} holds the lock"):
        join()
    assert gangline(state, "server", "stop", "--force").returncode == 0
    assert not is_served(state)
    assert join().health()["pid"] != pid


def test_a_frozen_server_is_ended_by_force(state, client):
    pid = client.health()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert f"pid {pid} holds the lock" in gangline(state, "server", "stop").stderr
    assert gangline(state, "server", "stop", "--force").returncode == 0
    assert not is_served(state)


def test_a_server_whose_lock_is_another_file_ends_by_itself(state, client):
    pid = client.health()["pid"]
    state.lock.rename(state.path / "moved.lock")
    wait_until(lambda: not is_alive(pid), "the server ends")
