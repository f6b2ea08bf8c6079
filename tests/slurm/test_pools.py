"""A pool of the real cluster as people handle it: examined, looked into, taken out."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.laptop import HOLD, Laptop, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


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


LOOK = (
    "echo on=$(hostname) in=$PWD rank=$RANK/$WORLD_SIZE sees=$CUDA_VISIBLE_DEVICES run=$GANGLINE_RUN_DIR",
    "echo set-up=$FROM_SETUP secret=$SECRET job=$SLURM_JOB_ID python=$(command -v python3)",
    'python3 -c \'import gangline; gangline.log({"from_the_shell": 1}); print("rank", gangline.current().rank)\'',
    "exit",
)
"""What a person types in a shell beside a rank."""


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
