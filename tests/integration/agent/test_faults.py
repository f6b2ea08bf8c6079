"""Agents that are killed, gangs that do not come together, ports that are taken."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import lack

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = [pytest.mark.integration, pytest.mark.faults]

SLEEPER = """
    import subprocess, sys, time
    daemon = "import time; print('daemon up', flush=True); time.sleep(600)"
    subprocess.Popen(["setsid", sys.executable, "-c", daemon])
    time.sleep(600)
"""


def test_a_killed_follower_is_a_lost_node(gang: Gang) -> None:
    gang.script(SLEEPER)
    gang.start(nodes=2, restarts={"max_infrastructure_restarts": 1})
    gang.until_running()
    for rank in range(4):
        gang.until_said("daemon up", rank=rank)
    gang.agents[1].kill()
    assert gang.agents[0].wait(30) == 0
    result = gang.result()
    assert (result["outcome"], result["reason"], result["next"]) == ("failed", "node_lost", "relaunch")
    assert "Node 1" in result["message"]
    assert gang.events("agent_lost")[0]["node"] == 1
    gang.until(lambda: not gang.left_behind())


def test_a_killed_leader_takes_the_gang_with_it(gang: Gang) -> None:
    gang.script(SLEEPER)
    gang.start(nodes=2)
    gang.until_running()
    for rank in range(4):
        gang.until_said("daemon up", rank=rank)
    gang.agents[0].kill()
    assert gang.agents[1].wait(30) == 4
    gang.until(lambda: not gang.left_behind())
    assert gang.events("cleared", node=1)


@pytest.mark.parametrize("killed", ["agent", "guardian"])
@pytest.mark.parametrize("start", ["exec", "warm"])
def test_a_child_without_environment_and_session_does_not_outlive_its_agent(
    gang: Gang, start: str, killed: str
) -> None:
    gang.script("""
        import subprocess, time
        subprocess.Popen(["env", "-i", "setsid", "-f", "sh", "-c", "echo pid $$; exec sleep 999"])
        time.sleep(600)
    """)
    gang.start(start=start, procs_per_node=1)
    gang.until_said("pid ")
    left = int(gang.until(lambda: re.search(r"pid (\d+)\n", gang.log()))[1])
    assert Path(f"/proc/{left}/environ").read_bytes().count(b"GANGLINE") == 0
    os.kill(gang.pid(0) if killed == "agent" else gang.agents[0].pid, signal.SIGKILL)
    assert gang.agents[0].wait(30) == {"agent": 128 + signal.SIGKILL, "guardian": -signal.SIGKILL}[killed]
    gang.until(lambda: not Path(f"/proc/{left}").exists())
    assert ("agent was killed by SIGKILL" if killed == "agent" else "guards this agent was killed") in gang.agent_logs()


def test_signals_reach_the_agent_through_its_guardian(gang: Gang) -> None:
    gang.script("import time; print('up'); time.sleep(600)")
    gang.start(procs_per_node=1)
    gang.until_said("up")
    gang.agents[0].send_signal(signal.SIGTERM)
    assert gang.agents[0].wait(30) == 0
    assert gang.result()["outcome"] == "preempted"


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGHUP"])
def test_a_signal_that_a_batch_script_asked_for_reaches_it(gang: Gang, name: str) -> None:
    gang.script(
        f"""
        #!/bin/bash
        trap 'echo heard; exit 9' {name.removeprefix("SIG")}
        echo up
        while :; do sleep 0.05; done
    """.lstrip("\n"),
        "old.sbatch",
    )
    gang.start(procs_per_node=1, entry="./old.sbatch", entry_kind="command", batch={"script": "old.sbatch"})
    gang.until_said("up\n")
    gang.agents[0].send_signal(signal.Signals[name])
    gang.agents[0].wait(30)
    assert "heard\n" in gang.log()
    assert (gang.result()["exit_code"], gang.result()["reason"]) == (9, "user_error")


def test_a_signal_for_scripts_does_no_harm_to_others(gang: Gang) -> None:
    gang.script("import os, time; print('up'); [time.sleep(0.02) for _ in iter(lambda: os.path.exists('go'), True)]")
    gang.start(procs_per_node=1)
    gang.until_said("up")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        gang.agents[0].send_signal(number)
        os.kill(gang.pid(0), number)
    (gang.run.code / "go").touch()
    assert gang.agents[0].wait(30) == 0
    assert gang.result()["outcome"] == "succeeded"


def test_the_next_launch_never_reuses_the_number_of_an_attempt(gang: Gang) -> None:
    gang.script("import os, time; print('up'); time.sleep(600 * (os.environ['GANGLINE_ATTEMPT'] == '0'))")
    gang.start(procs_per_node=1)
    gang.until_said("up")
    gang.agents[0].kill()
    gang.agents[0].wait()
    gang.run_to_end(procs_per_node=1, launch=1, first_attempt=0)
    assert not gang.attempt(0).result.exists()
    assert gang.result(1)["outcome"] == "succeeded"


def test_a_stopped_agent_process_does_not_stop_the_ranks_from_writing(gang: Gang) -> None:
    gang.script("""
        import time
        for number in range(100):
            print(number, flush=True)
            time.sleep(0.02)
    """)
    gang.start(procs_per_node=1)
    gang.until_said("3\n")
    os.kill(gang.pid(0), signal.SIGSTOP)
    gang.until_said("99\n")
    os.kill(gang.pid(0), signal.SIGCONT)
    gang.wait()
    assert gang.result()["outcome"] == "succeeded"


def test_a_gang_that_does_not_come_together_fails(gang: Gang) -> None:
    gang.script("print('never')")
    gang.write_launch(nodes=2, stop={"start_timeout_s": 0.2})
    gang.start_agent(0)
    gang.wait()
    result = gang.result()
    assert (result["reason"], result["exit_code"]) == ("start_timeout", 71)
    assert "[1]" in result["message"]
    assert gang.log() == ""


def test_strangers_are_not_let_in(gang: Gang) -> None:
    gang.script("print('done')")
    gang.write_launch(nodes=2)
    gang.start_agent(0)
    gang.until(gang.run.launch(0).leader.exists)
    port = json.loads(gang.run.launch(0).leader.read_text())["port"]
    hello = b'{"hello": 1, "token": "%s", "host": "x", "address": "127.0.0.1", "pid": 1, "machine": "m"}\n'
    for said in (hello % b"wrong", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"x" * 100_000, b'{"hello": 7}\n'):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            stranger.sendall(said)
            try:
                assert stranger.recv(100) == b""
            except ConnectionResetError:
                continue
    gang.start_agent(1)
    gang.wait()
    assert gang.result()["outcome"] == "succeeded"


def test_a_port_that_somebody_else_holds_costs_nothing(gang: Gang) -> None:  # L1
    gang.script("""
        import os
        if os.environ["GANGLINE_ATTEMPT"] == "0":
            port = os.environ["MASTER_PORT"]
            raise RuntimeError(f"The server socket has failed to listen. port: {port}, address already in use")
    """)
    gang.run_to_end(restarts={"max_restarts": 0, "max_infrastructure_restarts": 0}, procs_per_node=1)
    first = gang.result(0)
    assert (first["reason"], first["next"], first["budget"]) == ("rendezvous_failed", "restart", None)
    assert gang.result(1)["outcome"] == "succeeded"


def test_gangs_that_start_together_get_different_ports(make_gang: Callable[[], Gang]) -> None:  # L1
    gangs = [make_gang() for _ in range(5)]
    for one in gangs:
        one.script("""
            import os, socket, time
            if os.environ["RANK"] == "0":
                server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
                server.accept()
            else:
                while True:
                    try:
                        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
                        break
                    except OSError:
                        time.sleep(0.01)
        """)
        one.start()
    for one in gangs:
        one.wait()
    assert [one.result()["outcome"] for one in gangs] == ["succeeded"] * 5
    assert all(len(one.run.attempts()) == 1 for one in gangs)


def test_a_host_name_that_nobody_resolves_does_no_harm(gang: Gang, tmp_path: Path) -> None:  # L2
    fake = tmp_path / "bin" / "hostname"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho node-does-not-exist\n")
    fake.chmod(0o755)
    gang.script("import os; print(os.environ['MASTER_ADDR'])")
    gang.write_launch(nodes=2)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    gang.start_agent(0, GANGLINE_ADDRESS="", PATH=path)
    gang.start_agent(1, GANGLINE_ADDRESS="", PATH=path)
    gang.wait()
    assert gang.result()["outcome"] == "succeeded"
    assert gang.log(3).strip().count(".") == 3


def test_an_address_that_cannot_be_reached_is_named(gang: Gang) -> None:  # L2
    gang.script("print('never')")
    gang.write_launch(nodes=2, stop={"start_timeout_s": 3.0})
    gang.start_agent(0)
    leader = gang.run.launch(0).leader
    where = json.loads(gang.until(lambda: leader.exists() and leader.read_text()))
    leader.write_text(json.dumps({**where, "hosts": ["node-does-not-exist.invalid"], "machine": "another"}))
    gang.start_agent(1)
    assert gang.agents[0].wait(30) == 0
    result = gang.result()
    assert result["reason"] == "start_timeout"
    assert "node-does-not-exist.invalid" in result["message"]


@pytest.mark.parametrize("address", ["node-does-not-exist.invalid", "x" * 70])
def test_an_address_that_was_set_and_nobody_reaches_ends_the_attempt_at_once(gang: Gang, address: str) -> None:  # L2
    """On one machine agents join over loopback, but ranks would meet, and hang, at the address that was set."""
    gang.script("print('never')")
    gang.write_launch(nodes=2, stop={"start_timeout_s": 300.0})
    for node in range(2):
        gang.start_agent(node, GANGLINE_ADDRESS=address)
    begin = time.monotonic()
    gang.wait()
    assert time.monotonic() - begin < 60  # and not the start timeout of five minutes
    result = gang.result()
    assert (result["outcome"], result["reason"]) == ("failed", "rendezvous_failed")
    assert re.match(r"Node [01] \(", result["message"])
    assert f"the address {address} that node 0 was given (GANGLINE_ADDRESS) is not reached" in result["message"]
    assert gang.log() == ""


def test_a_node_that_does_not_reach_the_leader_ends_the_attempt_before_the_start_timeout(gang: Gang) -> None:  # L2
    gang.script("print('never')")
    gang.write_launch(nodes=2, stop={"start_timeout_s": 20.0})
    gang.start_agent(0)
    leader = gang.run.launch(0).leader
    where = json.loads(gang.until(lambda: leader.exists() and leader.read_text()))
    leader.write_text(json.dumps({**where, "hosts": ["node-does-not-exist.invalid"], "machine": "another"}))
    gang.start_agent(1)
    assert gang.agents[0].wait(90) == 0
    result = gang.result()
    assert result["reason"] == "start_timeout"
    assert result["message"].startswith("The gang cannot assemble. Node 1 (")
    assert "node-does-not-exist.invalid" in result["message"]


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with 200 MB, below the one that the tests run in."""
    own = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    path = next((line.split(":")[2] for line in own if line.split(":")[1] == "memory"), None)
    if path is None or not Path("/sys/fs/cgroup/memory", path.lstrip("/")).is_dir():
        lack("needs the memory controller of cgroup v1")
    group = Path("/sys/fs/cgroup/memory", path.lstrip("/"), f"gangline-test-{os.getpid()}-{tmp_path.name}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    yield group
    group.rmdir()


@pytest.mark.root
def test_a_rank_that_the_kernel_kills_for_memory_is_told_so(gang: Gang, memory_group: Path) -> None:  # F3
    gang.script("""
        import os, time
        if os.environ["RANK"] == "1":
            kept = bytearray(1 << 30)
            print(len(kept))
        time.sleep(600)
    """)
    gang.write_launch()
    enter = f'echo $$ > {memory_group}/cgroup.procs; exec "$@"'
    gang.start_agent(0, through=["sh", "-c", enter, "sh"])
    assert set(gang.wait().values()) == {0}
    result = gang.result()
    assert (result["reason"], result["exit_code"]) == ("out_of_memory", 137)
    assert result["first_failure"]["rank"] == 1
    assert "peak memory was" in result["message"]


@pytest.mark.parametrize("left", ["nothing", "made anew"])
def test_a_gang_whose_folder_is_removed_ends_and_says_so(gang: Gang, left: str) -> None:
    gang.script("import time; print('up', flush=True); time.sleep(600)")
    gang.start(nodes=2, procs_per_node=1)
    for rank in (0, 1):
        gang.until_said("up", rank=rank)
    shutil.rmtree(gang.run.path)
    if left == "made anew":
        gang.run.metrics(0).parent.mkdir(parents=True)
    assert set(gang.wait().values()) == {0}
    result = gang.result()
    assert (result["outcome"], result["reason"], result["next"]) == ("failed", "storage", "end")
    assert f"{gang.run.path} was removed while the ranks ran" in result["message"]
    assert "Nobody could follow or stop the run any more" in result["message"]
    assert gang.left_behind() == []
