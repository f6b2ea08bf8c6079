"""A pool of the real cluster as people handle it: examined, logged in to, looked into, taken out."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess

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


def test_a_pool_is_examined(laptop: Laptop) -> None:
    said = laptop.gangline("pools", "doctor", "lab", "--deep")
    found = dict(re.findall(r"^(?:ok|warning) +(\w+) +(.*)$", said, re.MULTILINE))
    assert {"connection", "clock", "commands", "python", "work", "partitions", "accounting"} <= found.keys(), said
    assert "alice on head" in found["connection"]
    assert "failed" not in said


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


def test_a_shell_opens_where_the_rank_runs_and_the_pool_is_taken_out_meanwhile(laptop: Laptop) -> None:
    run = laptop.submit(HOLD, "--nodes", "2")
    laptop.logged(run, "up", 1)
    shown = laptop.until(run, "running")  # what a rank prints may be there a moment before what is known of its attempt
    host = next(node["host"] for node in shown["attempts"][-1]["nodes"] if node["node"] == 1)
    command = laptop.gangline("shell", run, "--rank", "1", "--print")
    shown = typed_into(command, "echo on=$(hostname) job=$SLURM_JOB_ID; exit\n")
    assert f"on={host} job={laptop.job(run)}" in shown

    said = laptop.gangline("pools", "remove", "lab")
    assert "until they are over" in said
    assert "lab" in laptop.refused("submit", "--pool", "lab", "--", "true")
    laptop.grows(run)
    laptop.go(run)
    laptop.until(run, "succeeded")
    eventually("the pool to be gone", lambda: "lab" not in laptop.gangline("pools"))
