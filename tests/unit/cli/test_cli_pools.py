"""`gangline pools`: what people see of clusters, and how they add one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

FAILED = [
    {"check": "connection", "verdict": "ok", "text": "me on login1.", "fix": ""},
    {"check": "work folder", "verdict": "failed", "text": "/w cannot be written to.", "fix": "Name a folder of yours."},
]


def test_a_pool_that_needs_a_login_says_what_to_type(gangline: Any, client: Any):
    unknown = {"nodes": 1_000_000, "ranks": 1_000_000, "memory_bytes": 1 << 60, "devices": []}
    state = {"state": "login_needed", "state_text": "It asks for a second factor.", "command": "gangline pools login a"}
    client.more_pools = [{"name": "a", "backend": "slurm", **state, **unknown, "since": 1.0}]
    client.pools_fault = "`pools.b.wrk` (pools.yaml, line 9) is not a key of a pool."
    result = gangline("pools")
    lines = result.out.splitlines()
    assert lines[2].split()[:6] == ["a", "slurm", "login", "needed", "-", "-"]
    assert "It asks for a second factor." in lines[3]
    assert lines[4].strip() == "gangline pools login a"
    assert "line 9" in result.err
    assert json.loads(gangline("pools", "--json").out)[1]["command"] == "gangline pools login a"


def test_a_pool_is_added_by_options_and_examined(gangline: Any, client: Any):
    client.findings = FAILED
    line = [
        "pools",
        "add",
        "a",
        "--ssh",
        "bastion",
        "--ssh-option",
        "-F",
        "--ssh-option",
        "/c",
        "--work",
        "/w",
        "--partition",
        "gpu",
        "--exclusive",
        "--poll",
        "2s",
        "--env",
        "A=1",
        "--setup",
    ]
    result = gangline(*line, "module load cuda", "--sbatch-option", "mail-type=END", "--sbatch-option", "requeue")
    assert client.calls[0] == (
        "add_pool",
        (
            "a",
            {
                "backend": "slurm",
                "ssh": "bastion",
                "ssh_options": ["-F", "/c"],
                "work": "/w",
                "poll": "2s",
                "env": {"A": "1"},
                "defaults": {
                    "partition": "gpu",
                    "exclusive": True,
                    "setup": ["module load cuda"],
                    "options": {"mail-type": "END", "requeue": ""},
                },
            },
        ),
    )
    assert client.calls[1] == ("examine_pool", ("a", False))
    assert result.code == 1
    assert "failed   work folder  /w cannot be written to." in result.out
    assert "→ Name a folder of yours." in result.out


def test_what_belongs_to_one_run_is_no_option_of_a_pool(gangline: Any):
    assert gangline("pools", "add", "a", "--work", "/w", "--dependency", "afterok:1").code == 64


def test_the_doctor_exits_by_what_it_finds(gangline: Any, client: Any):
    client.findings = FAILED[:1]
    assert gangline("pools", "doctor", "a", "--deep").code == 0
    assert client.calls == [("examine_pool", ("a", True))]
    client.findings = [*FAILED[:1], {**FAILED[1], "verdict": "warning"}]
    assert gangline("pools", "doctor", "a").code == 0
    client.findings = FAILED
    result = gangline("pools", "doctor", "a", "--json")
    assert (result.code, json.loads(result.out)) == (1, FAILED)


def test_a_login_runs_the_pools_own_command_and_examines_it_then(gangline: Any, client: Any, tmp_path: Any):
    client.findings = FAILED[:1]
    mark = tmp_path / "mark"
    client.login = [sys.executable, "-c", f"open({str(mark)!r}, 'w')"]
    assert gangline("pools", "login", "a").code == 0
    assert mark.exists()
    assert client.calls == [("examine_pool", ("a", False))]
    client.login = [sys.executable, "-c", "raise SystemExit(255)"]
    failed = gangline("pools", "login", "a")
    assert failed.code == 64
    assert "ssh ended with 255" in failed.err
    assert "SystemExit(255)" in gangline("pools", "login", "a", "--print").out
    client.login = []
    assert "Nobody has to log in" in gangline("pools", "login", "a").err


def test_a_removed_pool_that_still_has_runs_says_so(gangline: Any, client: Any):
    assert gangline("pools", "remove", "a").out == "Pool a is taken out of /home/pools.yaml.\n"
    client.more_pools = [{"name": "a", "running": 2, "queued": 1}]
    assert "It serves 3 runs until they are over" in gangline("pools", "remove", "a").out


@pytest.mark.usefixtures("client")
def test_a_pool_is_shown_with_its_settings(gangline: Any):
    out = gangline("pools", "show", "a").out
    assert "work: /w" in out
    assert json.loads(gangline("pools", "show", "a", "--json").out)["settings"]["work"] == "/w"


JOBS = [
    {"job": "7", "state": "RUNNING", "run": "one-7k3q", "launch": 0, "since": 1.0, "nodes": 2, "standing": "followed"},
    {"job": "8", "state": "RUNNING", "run": "two-7k3q", "launch": 1, "since": 1.0, "nodes": 4, "standing": "orphan"},
    {"job": "9", "state": "", "run": "six-7k3q", "launch": 0, "since": None, "nodes": None, "standing": "missing"},
]


def test_jobs_of_a_pool_are_listed_and_zombies_ended(gangline: Any, client: Any):
    assert "holds no job" in gangline("pools", "jobs", "a").out
    client.jobs = [{**job, "text": "why so", "fix": "Do this.", "ended": False} for job in JOBS]
    result = gangline("pools", "jobs", "a", "--quiet", "2h")
    assert client.calls[-1] == ("pool_jobs", ("a", 7200.0))
    assert [line.split()[0] for line in result.out.splitlines()[1:4]] == ["7", "8", "9"]
    assert "orphan" in result.out
    assert "→ 8: Do this." in result.out
    assert json.loads(gangline("pools", "jobs", "a", "--json").out)[2]["standing"] == "missing"
    result = gangline("pools", "jobs", "a", "--end-zombies")
    assert client.calls[-1] == ("end_zombies", "a")
    assert result.out.splitlines()[-1] == "1 job ended."
    assert gangline("pools", "jobs", "a", "--quiet", "soon").code == 64
