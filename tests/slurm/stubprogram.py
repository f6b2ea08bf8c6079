"""What stands behind each stub, by the standard library alone; started as `stubprogram.py FOLDER NAME …`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Job = dict[str, Any]
State = dict[str, Any]
Said = tuple[str, str, int]
"""stdout, stderr, exit code."""

OVER = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "BOOT_FAIL",
}
FIELDS = {
    "i": "id",
    "A": "id",
    "F": "id",
    "T": "state",
    "j": "name",
    "k": "comment",
    "r": "reason",
    "R": "reason",
    "N": "nodes",
    "u": "user",
    "P": "partition",
    "S": "start",
    "V": "submit",
    "l": "limit",
    "M": "elapsed",
    "Z": "work_dir",
    "D": "num_nodes",
}
LONG_FIELDS = {
    "jobid": "id",
    "jobarrayid": "id",
    "state": "state",
    "name": "name",
    "comment": "comment",
    "reason": "reason",
    "reasonlist": "reason",
    "nodelist": "nodes",
    "username": "user",
    "partition": "partition",
    "exit_code": "exit_code",
    "restartcnt": "restarts",
    "requeue": "requeue",
    "starttime": "start",
    "endtime": "end",
    "submittime": "submit",
    "numnodes": "num_nodes",
    "timelimit": "limit",
    "timeused": "elapsed",
}
SSH_TAKES_VALUE = set("BbcDEeFIiJLlmOopQRSWw")
CONNECTION_LOST = 255


def main(folder: Path, name: str, argv: list[str]) -> int:
    script = script_of(argv) if name == "sbatch" else ""
    with locked(folder) as state:
        call = {
            "command": name,
            "argv": argv,
            "stdin": script,
            "pid": os.getpid(),
            "time": time.time(),
            "cwd": str(Path.cwd()),
        }
        with (folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps(call) + "\n")
        answer = chosen(state["answers"].get(name, []), " ".join(argv))
    if answer is None:
        return speak(plain(folder, name, argv, script)) if name != "ssh" else ssh(argv)
    time.sleep(answer["delay_s"])
    code = act(folder, name, argv, script, answer)
    if answer["die_by"] is not None:
        os.kill(os.getpid(), answer["die_by"])
    return code


def act(folder: Path, name: str, argv: list[str], script: str, answer: dict[str, Any]) -> int:
    if name == "ssh" and (answer["plain"] or answer["cut_after_s"] is not None):
        return ssh(argv, before=answer["before"], after=answer["after"], cut_after_s=answer["cut_after_s"])
    if answer["plain"]:
        out, err, code = plain(folder, name, argv, script)
        return speak((answer["before"] + out + answer["after"], answer["err"] + err, answer["rc"] or code))
    with locked(folder) as state:
        if answer["register"]:
            register(state, argv, script)
        lines = [answer["per_job"].format(**job) for job in state["jobs"].values()]
    return speak((answer["before"] + answer["out"] + "".join(lines) + answer["after"], answer["err"], answer["rc"]))


def speak(said: Said) -> int:
    out, err, code = said
    sys.stdout.buffer.write(out.encode())
    sys.stdout.flush()
    sys.stderr.buffer.write(err.encode())
    sys.stderr.flush()
    return code


@contextmanager
def locked(folder: Path) -> Iterator[State]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads((folder / "state.json").read_text())
        yield state
        (folder / "state.json").write_text(json.dumps(state))


def chosen(answers: list[dict[str, Any]], words: str) -> dict[str, Any] | None:
    """The answer that is due; it counts as given."""
    for answer in answers:
        if answer["times"] == 0 or not re.search(answer["match"], words):
            continue
        if answer["times"] is not None:
            answer["times"] -= 1
        return answer
    return None


def script_of(argv: list[str]) -> str:
    files = [word for word in argv if not word.startswith("-") and Path(word).is_file()]
    if files:
        return Path(files[0]).read_text(errors="replace")
    wrapped = value_of(argv, "--wrap")
    return wrapped if wrapped is not None else sys.stdin.buffer.read().decode(errors="replace")


def value_of(argv: list[str], *names: str) -> str | None:
    """The value of an option, as `--name=value`, `--name value` or `-nvalue`; the last one counts."""
    found = None
    for at, word in enumerate(argv):
        for name in names:
            if word == name and at + 1 < len(argv):
                found = argv[at + 1]
            elif word.startswith(name + "="):
                found = word[len(name) + 1 :]
            elif (
                not name.startswith("--")
                and word.startswith(name)
                and len(word) > len(name)
                and not word.startswith("--")
            ):
                found = word[len(name) :]
    return found


# ---- what a small healthy cluster says


def plain(folder: Path, name: str, argv: list[str], script: str) -> Said:
    with locked(folder) as state:
        if name == "sbatch":
            return sbatch(state, argv, script)
        known: dict[str, Callable[[State, list[str]], Said]] = {
            "squeue": squeue,
            "scontrol": scontrol,
            "scancel": scancel,
            "sacct": sacct,
            "sinfo": sinfo,
        }
        return known[name](state, argv)


def sbatch(state: State, argv: list[str], script: str) -> Said:
    if "--version" in argv or "-V" in argv:
        return "slurm-wlm 22.05.8\n", "", 0
    if "--test-only" in argv:
        where = "using 1 processors on nodes node01 in partition main"
        when = str(int(time.time())) if os.environ.get("SLURM_TIME_FORMAT") == "%s" else "2026-01-01T00:00:00"
        return "", f"sbatch: Job {state['next']} to start at {when} {where}\n", 0
    job = register(state, argv, script)
    return (f"{job}\n" if "--parsable" in argv else f"Submitted batch job {job}\n"), "", 0


def register(state: State, argv: list[str], script: str) -> str:
    lines = re.findall(r"^#SBATCH\s+(.+?)\s*$", script, re.MULTILINE)
    words = [word.strip("'\"") for line in lines for word in re.findall(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""", line)]
    words = [re.sub(r"""^(--[a-z-]+=)["'](.*)$""", r"\1\2", word) for word in words] + argv
    job = str(state["next"])
    state["next"] += 1
    state["jobs"][job] = {
        "id": job,
        "name": value_of(words, "--job-name", "-J") or "sbatch",
        "comment": value_of(words, "--comment") or "",
        "work_dir": value_of(words, "--chdir", "-D") or str(Path.cwd()),
        "partition": value_of(words, "--partition", "-p") or "main",
        "num_nodes": value_of(words, "--nodes", "-N") or "1",
        "submit": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "state": "PENDING",
        "reason": "Priority",
        "nodes": "",
        "user": "alice",
        "exit_code": 0,
        "restarts": 0,
        "start": "N/A",
        "limit": "UNLIMITED",
        "elapsed": "0:00",
        "argv": argv,
        "script": script,
    }
    return job


def squeue(state: State, argv: list[str]) -> Said:
    if "--version" in argv or "-V" in argv:
        return "slurm-wlm 22.05.8\n", "", 0
    asked = value_of(argv, "--jobs", "-j")
    jobs = listed(state, argv)
    if asked is not None and not any(job in state["jobs"] for job in asked.split(",")):
        return "", "slurm_load_jobs error: Invalid job id specified\n", 1
    if "--json" in argv:
        return json.dumps({"jobs": [as_json(job) for job in jobs]}), "", 0
    long = value_of(argv, "--Format", "-O")
    if long is not None:
        return "".join(by_names(long, job) for job in jobs), "", 0
    pattern = value_of(argv, "--format", "-o") or "%i %P %j %u %t %M %D %R"
    return "".join(by_letters(pattern, job) + "\n" for job in jobs), "", 0


def listed(state: State, argv: list[str]) -> list[Job]:
    asked, states, name = (
        value_of(argv, "--jobs", "-j"),
        value_of(argv, "--states", "-t"),
        value_of(argv, "--name", "-n"),
    )
    jobs = [job for job in state["jobs"].values() if asked is None or job["id"] in asked.split(",")]
    jobs = [job for job in jobs if name is None or job.get("name") in name.split(",")]
    if states is None:
        return [job for job in jobs if job["state"] not in OVER]
    return jobs if states.lower() == "all" else [job for job in jobs if job["state"] in states.upper().split(",")]


def by_letters(pattern: str, job: Job) -> str:
    return re.sub(r"%\.?\d*([a-zA-Z])", lambda found: str(job.get(FIELDS.get(found[1], ""), "N/A")), pattern)


def by_names(pattern: str, job: Job) -> str:
    """`jobid:8,state:|` and the like: a width, or all of it, with a separator."""
    text = ""
    for field in pattern.split(","):
        name, _, after = field.partition(":")
        value = str(job.get(LONG_FIELDS.get(name.strip().lower(), ""), "N/A"))
        width = re.match(r"\.?(\d+)", after)
        separator = re.sub(r"^\.?\d+", "", after)
        text += (value[: int(width[1])].ljust(int(width[1])) if width else value) + separator
    return text + "\n"


def as_json(job: Job) -> dict[str, Any]:
    return {
        "job_id": int(job["id"]),
        "name": job.get("name"),
        "comment": job.get("comment"),
        "job_state": job["state"],
        "state_reason": job.get("reason", "None"),
        "nodes": job.get("nodes", ""),
        "user_name": job.get("user"),
        "partition": job.get("partition"),
        "exit_code": job.get("exit_code", 0),
        "restart_cnt": job.get("restarts", 0),
    }


def scontrol(state: State, argv: list[str]) -> Said:
    words = [word for word in argv if not word.startswith("-")]
    if words[:1] == ["ping"]:
        return "Slurmctld(primary) at head is UP\n", "", 0
    if not words:  # as a dialogue: a line for each question
        said = [scontrol(state, line.split()) for line in sys.stdin.read().splitlines()]
        return "".join(f"scontrol: {out}" for out, _, _ in said), "".join(err for _, err, _ in said), said[-1][2]
    if words[:2] != ["show", "job"]:
        return "", "", 0
    job = state["jobs"].get(words[2] if len(words) > 2 else "")
    if job is None:
        return "", "slurm_load_jobs error: Invalid job id specified\n", 1
    status = int(job.get("exit_code") or 0)
    pairs = {
        "JobId": job["id"],
        "JobName": job.get("name"),
        "JobState": job["state"],
        "Reason": job.get("reason") or "None",
        "Restarts": job.get("restarts", 0),
        "ExitCode": f"{status >> 8}:{status & 127}",
        "NodeList": job.get("nodes") or "",
        "Comment": job.get("comment") or "",
    }
    return " ".join(f"{key}={value}" for key, value in pairs.items()) + "\n", "", 0


def scancel(state: State, argv: list[str]) -> Said:
    for word in argv:
        job = state["jobs"].get(word)
        if job is not None and job["state"] not in OVER:
            job.update(state="CANCELLED", reason="None", exit_code=15)
    return "", "", 0


def sacct(_state: State, argv: list[str]) -> Said:
    if "--version" in argv or "-V" in argv:
        return "slurm-wlm 22.05.8\n", "", 0
    return "", "Slurm accounting storage is disabled\n", 1


def sinfo(_state: State, argv: list[str]) -> Said:
    return ("slurm-wlm 22.05.8\n" if "--version" in argv or "-V" in argv else ""), "", 0


# ---- ssh


def ssh(argv: list[str], *, before: str = "", after: str = "", cut_after_s: float | None = None) -> int:
    """Run the command here, by a shell, as sshd does."""
    asked, command = parse_ssh(argv)
    if asked is not None:
        return speak(("", f"{'Master running (pid=1)' if asked == 'check' else 'Exit request sent.'}\n", 0))
    speak((before, "", 0))
    child = subprocess.Popen(["sh", "-c", command], start_new_session=True)
    try:
        code = child.wait(timeout=cut_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        return speak(("", "client_loop: send disconnect: Broken pipe\n", CONNECTION_LOST))
    return speak((after, "", code if code >= 0 else CONNECTION_LOST))


def parse_ssh(argv: list[str]) -> tuple[str | None, str]:
    """What `-O` asks of a master, if it does; and the command behind the host."""
    at, asked = 0, None
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-":
        letter = next((letter for letter in argv[at][1:] if letter in SSH_TAKES_VALUE), None)
        if letter is None:
            at += 1
            continue
        value = argv[at].partition(letter)[2]
        if not value:
            at += 1
            value = argv[at]
        asked = value if letter == "O" else asked
        at += 1
    return asked, " ".join(argv[at + 1 :]) or "true"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
