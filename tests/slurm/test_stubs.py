"""The stubs themselves: tests that lean on them are worth no more than they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.slurm.stubs import Stubs


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return Stubs(tmp_path)


def call(stubs: Stubs, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={**os.environ, **stubs.env}, input=stdin, text=True, capture_output=True, timeout=60, check=False
    )


def test_a_submitted_job_is_seen_and_ended(stubs: Stubs):
    script = "#!/bin/bash\n#SBATCH --comment='gangline:a b' --job-name=llama\ntrue\n"
    assert call(stubs, "sbatch", "--parsable", stdin=script).stdout == "1001\n"
    assert call(stubs, "squeue", "-h", "-o", "%i|%T|%k").stdout == "1001|PENDING|gangline:a b\n"
    stubs.change_job("1001", state="RUNNING", nodes="node01")
    assert call(stubs, "squeue", "-h", "-O", "jobid:|,state:8,name:").stdout == "1001|RUNNING llama\n"
    assert json.loads(call(stubs, "squeue", "--json").stdout)["jobs"][0]["nodes"] == "node01"
    call(stubs, "scancel", "1001")
    assert call(stubs, "squeue", "-h").stdout == ""
    assert "JobState=CANCELLED" in call(stubs, "scontrol", "-o", "show", "job", "1001").stdout
    assert stubs.calls("sbatch")[0].stdin == script


def test_a_job_is_made_and_denied(stubs: Stubs):
    stubs.answer("sbatch", register=True, err="Socket timed out\n", rc=1, times=1)
    done = call(stubs, "sbatch", "--comment=token", stdin="#!/bin/sh\n")
    assert (done.returncode, done.stderr) == (1, "Socket timed out\n")
    assert [job["comment"] for job in stubs.jobs().values()] == ["token"]
    assert call(stubs, "sbatch", stdin="").stdout == "Submitted batch job 1002\n"


def test_answers_come_in_order_and_by_match(stubs: Stubs):
    stubs.answer("squeue", out="first\n", times=1)
    stubs.answer("squeue", out="json\n", match="--json")
    stubs.answer("squeue", per_job="{id}:{state}\n")
    stubs.change_job("7", state="WEIRD")
    said = [call(stubs, "squeue", *argv).stdout for argv in ([], ["--json"], [])]
    assert said == ["first\n", "json\n", "7:WEIRD\n"]
    stubs.clear("squeue")
    assert call(stubs, "squeue", "-j", "8").returncode == 1


def test_banners_delays_and_signals(stubs: Stubs):
    stubs.answer("sbatch", before="Welcome to Stampede3\n", plain=True, delay_s=0.3)
    began = time.monotonic()
    assert call(stubs, "sbatch", stdin="").stdout == "Welcome to Stampede3\nSubmitted batch job 1001\n"
    assert time.monotonic() - began >= 0.3
    stubs.answer("sinfo", die_by=int(signal.SIGKILL))
    assert call(stubs, "sinfo").returncode == -signal.SIGKILL


def test_ssh_runs_its_command_here(stubs: Stubs):
    done = call(
        stubs, "ssh", "-F", "/dev/null", "-oBatchMode=yes", "-T", "bastion", "cat; echo $((1 + 1))", stdin="in\n"
    )
    assert done.stdout == "in\n2\n"
    assert call(stubs, "ssh", "-O", "check", "bastion").returncode == 0
    stubs.answer("ssh", before="motd 4711\n", after="bye\n", plain=True, times=1)
    assert call(stubs, "ssh", "bastion", "exit", "3").stdout == "motd 4711\nbye\n"
    stubs.answer("ssh", cut_after_s=0.2)
    assert call(stubs, "ssh", "bastion", "sleep 600").returncode == 255


def test_many_at_once_lose_nothing(stubs: Stubs):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call(stubs, "sbatch"), range(16)))
    assert len(stubs.jobs()) == len(stubs.calls("sbatch")) == 16
