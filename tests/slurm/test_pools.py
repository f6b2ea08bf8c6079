"""A pool of the real cluster as people handle it: examined, logged in to, looked into, taken out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.slurm.laptop import HOLD, Laptop, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

KEYS = "/run/etc/ssh/authorized_keys"


def state_of(laptop: Laptop) -> str:
    with laptop.client() as client:
        (pool,) = [pool for pool in client.pools() if pool["name"] == "lab"]
    return pool["state"]


def typed_into(command: str, text: str) -> str:
    """What a terminal shows in which a person types this into a command."""
    near, far = pty.openpty()
    with subprocess.Popen(shlex.split(command), stdin=far, stdout=far, stderr=far, start_new_session=True) as child:
        os.close(far)
        os.write(near, text.encode())
        shown = b""
        try:
            while piece := os.read(near, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(near)
        assert child.wait(timeout=60) == 0, shown
    return shown.decode(errors="replace")


def asked_at_terminal(laptop: Laptop, words: list[str], asks: str, answer: str) -> str:
    """What a terminal shows in which a person runs a command of Gangline's and answers its one question."""
    near, far = pty.openpty()
    command = [str(Path(sys.executable).with_name("gangline")), *words]
    env = {**os.environ, "GANGLINE_HOME": str(laptop.home)}
    shown = b""

    def begin() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # ssh asks at /dev/tty

    with subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=env, preexec_fn=begin) as child:  # noqa: PLW1509 - no thread but this one
        os.close(far)
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(near, 4096):
                shown += piece
                if asks.encode() in shown and answer:
                    os.write(near, f"{answer}\n".encode())
                    answer = ""
                if child.poll() is not None:
                    break
        os.close(near)
        assert child.wait(timeout=60) == 0, shown
    return shown.decode(errors="replace")


def masters_of(login: list[str]) -> list[int]:
    """Processes that hold the shared connection which a login has opened."""
    socket = next(word for word in login if word.startswith("ControlPath=")).removeprefix("ControlPath=")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if socket in words and ("-fN" in words or "[mux]" in words):
            found.append(process.pid)
    return found


def test_a_pool_is_examined(laptop: Laptop) -> None:
    said = laptop.gangline("pools", "doctor", "lab", "--deep")
    found = dict(re.findall(r"^(?:ok|warning) +(\w+) +(.*)$", said, re.MULTILINE))
    assert {"connection", "clock", "commands", "python", "work", "partitions", "accounting"} <= found.keys(), said
    assert "alice on head" in found["connection"]
    assert "failed" not in said


def test_a_dead_controller_is_the_one_thing_that_failed(laptop: Laptop) -> None:
    laptop.cluster.stop_ctld()
    with laptop.client() as client:
        found = {one["check"]: one for one in client.examine_pool("lab", deep=True)}
    assert [check for check, one in found.items() if one["verdict"] == "failed"] == ["controller"]
    unchecked = {check for check, one in found.items() if one["verdict"] == "unchecked"}
    assert unchecked == {"partitions", "accounting", "limits", "compute node"}
    assert "DOWN" in found["controller"]["text"]
    assert found["work folder"]["verdict"] != "unchecked", "what can be told is"


def test_what_is_free_is_said_by_partition(laptop: Laptop) -> None:
    def part(name: str) -> dict[str, Any]:
        with laptop.client() as client:
            return next((one for one in client.pool("lab")["parts"] if one["name"] == name), {})

    whole = eventually("a whole cluster", lambda: (found := part("main")).get("free_devices") == 32 and found)
    assert (whole["idle_nodes"], whole["nodes"], whole["is_usual"]) == (4, 4, True)
    laptop.cluster.drain("node04")
    run = laptop.submit(HOLD, "--nodes", "2", "--gpus-per-node", "3")
    laptop.logged(run, "up", 1)
    less = eventually("less of it", lambda: (found := part("main"))["free_devices"] == 18 and found)
    assert less["idle_nodes"] == 1
    assert less["free_cpus"] < whole["free_cpus"] * 3 // 4
    assert re.search(r"main +1/4 +\d+/\d+ +18/32", laptop.gangline("pools", "show", "lab"))
    assert "18/32" in laptop.gangline("pools")

    waits = laptop.submit(HOLD, "--nodes", "4")
    room = eventually("why it waits", lambda: laptop.show(waits)["room"])
    assert [(one["name"], one["idle_nodes"]) for one in room] == [("main", 1)]
    assert "main: 1 of 4 nodes idle" in laptop.gangline("show", waits)
    laptop.gangline("stop", waits)
    laptop.go(run)
    laptop.until(run, "succeeded")


def test_a_dry_run_shows_what_slurm_is_then_given(laptop: Laptop) -> None:
    file = laptop.home / "pools.yaml"
    pools = json.loads(file.read_text())
    defaults = {"partition": "spot", "setup": ["export FROM=pool"], "options": {"mail-type": "NONE"}}
    pools["pools"]["lab"]["defaults"] = defaults
    file.write_text(json.dumps(pools))
    (laptop.folder / "train.py").write_text(HOLD)

    def is_known() -> bool:
        with laptop.client() as client:
            pool = client.pool("lab")
        return pool["settings"].get("defaults") == defaults and any(part["is_usual"] for part in pool["parts"])

    eventually("the pool to be as it is now, and to say what it has", is_known)
    asked = ("--pool", "lab", "--procs-per-node", "2", "--setup", "export TOO=mine", "--time-limit", "10m", "train.py")
    shown = json.loads(laptop.gangline("submit", "--dry-run", "--json", *asked))
    gang = shown["gang"]
    assert (gang["slurm"]["partition"], gang["slurm"]["options"]) == ("spot", {"mail-type": "NONE"})
    assert gang["slurm"]["setup"] == ["export FROM=pool", "export TOO=mine"]
    cpus = f"--cpus-per-task={gang['cpus_per_node']}\n"
    assert cpus in shown["files"]["launches/000/job.sh"]

    run = json.loads(laptop.gangline("submit", "--json", "--detach", *asked))["id"]
    laptop.logged(run, "up", 1)
    for name in ("job.sh", "node.sh", "shell.sh"):
        dry = shown["files"][f"launches/000/{name}"]
        dry = dry.replace(gang["run_id"], run)
        assert (laptop.run_dir(run) / "launches/000" / name).read_text() == dry
    details = laptop.cluster.as_user(["scontrol", "show", "job", laptop.job(run)]).stdout
    cpus = f"CPUs/Task={gang['cpus_per_node']}"
    assert all(text in details for text in ("Partition=spot", cpus, "TimeLimit=00:10:00")), details
    laptop.go(run)
    laptop.until(run, "succeeded")


def test_a_person_logs_in_where_no_key_is_taken(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.gangline("pools", "doctor", "lab")
    command = shlex.split(laptop.gangline("pools", "login", "lab", "--print"))
    assert command[-2:] == ["-fN", "bastion"]
    cluster.on("head", ["mv", KEYS, f"{KEYS}.away"])
    try:
        cluster.restart_bastion()
        assert "login needed" in laptop.gangline("pools", "doctor", "lab", rc=1)
        assert state_of(laptop) == "login_needed"
        assert shlex.join(command) in laptop.gangline("pools"), "what to type is said"
        assert "ssh ended with 255" in laptop.refused("pools", "login", "lab")
    finally:
        cluster.on("head", ["mv", f"{KEYS}.away", KEYS])
    laptop.gangline("pools", "doctor", "lab")
    assert state_of(laptop) == "ready"


LOOK = (
    "echo on=$(hostname) in=$PWD rank=$RANK/$WORLD_SIZE sees=$CUDA_VISIBLE_DEVICES run=$GANGLINE_RUN_DIR",
    "echo set-up=$FROM_SETUP secret=$SECRET job=$SLURM_JOB_ID python=$(command -v python3)",
    'python3 -c \'import gangline; gangline.log({"from_the_shell": 1}); print("rank", gangline.current().rank)\'',
    "exit",
)
"""What a person types in a shell beside a rank."""


def test_a_person_logs_in_with_a_key_that_wants_a_passphrase(laptop: Laptop) -> None:
    """`pools login` at a terminal: the connection stays, the server rides on it, and `ssh -O exit` ends it."""
    cluster = laptop.cluster
    key = cluster.folder / "user_key"
    laptop.gangline("pools", "doctor", "lab")
    login = shlex.split(laptop.gangline("pools", "login", "lab", "--print"))
    change = ["ssh-keygen", "-q", "-p", "-f", str(key)]
    subprocess.run([*change, "-P", "", "-N", "open sesame"], check=True, capture_output=True)
    config = cluster.ssh_config.read_text()
    cluster.ssh_config.write_text(config.replace("BatchMode yes", "BatchMode no"))
    try:
        cluster.restart_bastion()
        assert "login needed" in laptop.gangline("pools", "doctor", "lab", rc=1)
        shown = asked_at_terminal(laptop, ["pools", "login", "lab"], "passphrase", "open sesame")
        assert "alice on head" in shown, shown
        assert state_of(laptop) == "ready"
        run = laptop.submit("print('hello')")
        laptop.until(run, "succeeded")
        # with ControlMaster=yes, as the login itself has it, ssh would open one more connection in place of asking
        master = [word.replace("ControlMaster=yes", "ControlMaster=no") for word in login[: login.index("-fN")]]
        subprocess.run([*master, "-O", "check", "bastion"], capture_output=True, check=True)
        subprocess.run([*master, "-O", "exit", "bastion"], capture_output=True, check=True)
        eventually("the login to be gone", lambda: not masters_of(login))
    finally:
        subprocess.run([*change, "-P", "open sesame", "-N", ""], check=False, capture_output=True)
        cluster.ssh_config.write_text(config)
    laptop.gangline("pools", "doctor", "lab")


def test_a_changed_host_key_is_no_login_and_is_never_taken(laptop: Laptop) -> None:
    cluster = laptop.cluster
    file = cluster.folder / "known_hosts"
    known = file.read_text()
    run = laptop.submit(HOLD)
    laptop.logged(run, "up")
    other = (cluster.folder / "user_key.pub").read_text().split()[1]
    file.write_text(f"{' '.join(known.split()[:2])} {other}\n")
    try:
        cluster.restart_bastion()
        eventually("the key to be missed", lambda: state_of(laptop) == "host_key_changed")
        with laptop.client() as client:
            (pool,) = [pool for pool in client.pools() if pool["name"] == "lab"]
        assert pool["command"] == "", "nobody is told to log in there"
        assert f"The ED25519 key at {file}:1 is known here, the host now shows SHA256:" in pool["state_text"]
        asks = "Ask the site's admin whether `SHA256:"
        typed = f"Only when they confirm it: `ssh-keygen -f {file} -R '[127.0.0.1]:"
        assert asks in pool["state_text"]
        assert typed in pool["state_text"]
        assert "host key changed" in laptop.gangline("pools")
        assert "ssh ended with 255" in laptop.refused("pools", "login", "lab")
        assert file.read_text().split()[2] == other, "what is known is left alone"
        assert laptop.show(run)["phase"] == "running"
        assert "SHA256" not in laptop.gangline("ps", "--json")
    finally:
        file.write_text(known)
    laptop.gangline("pools", "doctor", "lab")
    laptop.grows(run)
    laptop.go(run)
    laptop.until(run, "succeeded")


def test_a_shell_beside_a_rank_has_its_folder_and_environment(laptop: Laptop) -> None:
    asked = ("--nodes", "2", "--procs-per-node", "2", "--gpus-per-node", "2", "--env", "SECRET=s3cr3t")
    setup = ("--setup", f"export FROM_SETUP='a  b' PATH={laptop.cluster.work}/tools:$PATH")
    run = laptop.submit(HOLD, *asked, *setup)
    laptop.logged(run, "up", 3)
    shown = laptop.until(run, "running")  # what a rank prints may be there a moment before what is known of its attempt
    host = next(node["host"] for node in shown["attempts"][-1]["nodes"] if node["node"] == 1)
    command = laptop.gangline("shell", run, "--rank", "3", "--print")
    assert "s3cr3t" not in command
    said = typed_into(command, "".join(f"{line}\n" for line in LOOK))
    folder = f"{laptop.cluster.work}/{laptop.home.name}/runs/{run}"
    assert f"on={host} in={folder}/code rank=3/4 sees=" in said
    assert re.search(rf"sees=\d,\d run={re.escape(folder)}\r?\n", said), said
    assert "set-up=a b secret=s3cr3t job= python=" in said
    assert "\rrank 3\r" in said, "`import gangline` works as in the rank"
    laptop.grows(run)
    laptop.go(run)
    laptop.until(run, "succeeded")
    with laptop.client() as client:
        assert "from_the_shell" not in client.metrics(run), "what is tried in a shell is none of the run's numbers"
    assert "has no rank that runs" in laptop.refused("shell", run)


def in_shell(laptop: Laptop, run: str, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    words = [str(Path(sys.executable).with_name("gangline")), "shell", run, "--rank", "1", "--", *command]
    env = {**os.environ, "GANGLINE_HOME": str(laptop.home)}
    return subprocess.run(words, input=stdin, capture_output=True, env=env, check=False, timeout=90)


def test_a_command_beside_a_rank_is_as_if_it_were_here(laptop: Laptop) -> None:
    """Its words, input, output and exit code pass the bastion and `srun` unchanged."""
    run = laptop.submit(HOLD, "--nodes", "2", "--procs-per-node", "1", "--gpus-per-node", "2")
    laptop.logged(run, "up", 1)
    laptop.until(run, "running")
    odd = ["a  b", "$HOME", "it's", 'say "hi"', "*", "", "-x", "two\nlines", "\\", "ü"]
    told = in_shell(laptop, run, "printf", "<%s>", *odd)
    assert told.stdout.decode() == "".join(f"<{word}>" for word in odd), told
    data = bytes(range(256)) * 5000
    copied = in_shell(laptop, run, "sh", "-c", 'cat; echo "rank $RANK on $(hostname)" >&2; exit 7', stdin=data)
    assert copied.returncode == 7, copied.stderr
    assert copied.stdout == data
    assert b"rank 1 on node02" in copied.stderr
    assert in_shell(laptop, run, "no-such-program").returncode == 127
    assert in_shell(laptop, run, "sh", "-c", "kill -TERM $$").returncode == 128 + 15
    laptop.go(run)
    laptop.until(run, "succeeded")


def test_a_forgotten_shell_ends_with_the_job(laptop: Laptop) -> None:
    run = laptop.submit(HOLD)
    laptop.logged(run, "up")
    laptop.until(run, "running")
    command = laptop.gangline("shell", run, "--print")
    near, far = pty.openpty()
    with subprocess.Popen(shlex.split(command), stdin=far, stdout=far, stderr=far, start_new_session=True) as child:
        os.close(far)
        shown = b""
        while b"Ctrl-D" not in shown:
            shown += os.read(near, 4096)
        laptop.go(run)
        laptop.until(run, "succeeded")
        with contextlib.suppress(OSError):
            while os.read(near, 4096):
                pass
        os.close(near)
        child.wait(timeout=60)
    gone = subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
    assert gone.returncode != 0


def test_a_pool_is_taken_out_under_a_run(laptop: Laptop) -> None:
    run = laptop.submit(HOLD)
    laptop.logged(run, "up")
    said = laptop.gangline("pools", "remove", "lab")
    assert "until they are over" in said
    assert "lab" in laptop.refused("submit", "--pool", "lab", "--", "true")
    laptop.grows(run)
    laptop.go(run)
    laptop.until(run, "succeeded")
    eventually("the pool to be gone", lambda: "lab" not in laptop.gangline("pools"))
