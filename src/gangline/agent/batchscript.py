"""An existing batch script as the one rank of a gang: run as its scheduler would run it. Standard library only.

It sees what the scheduler gave the job, so that its own `srun` works, and nothing of the contract of a rank, which what
it starts would take for its own.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gangline.agent.environ import AttemptTerms, render_run_environment
from gangline.agent.launchspec import LaunchSpec

__all__ = [
    "expand_pattern",
    "find_script_fault",
    "link_logs",
    "read_job_shape",
    "render_batch_argv",
    "render_batch_environment",
    "script_folder",
]

_INNER = ("GANGLINE_", "TORCHELASTIC_")
_PATTERN = re.compile(r"%(\d*)([%A-Za-z])")
_DEFAULT_SHELL = ("/bin/sh",)
_LISTED = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)(?:,|$)")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def script_folder(batch: Mapping[str, str], workdir: Path) -> Path:
    """Where the script runs: in the folder that it was submitted from, or where it says."""
    return workdir / batch.get("chdir", "")


def render_batch_argv(batch: Mapping[str, str], args: Sequence[str], workdir: Path) -> list[str]:
    """The script under the interpreter of its first line, as the scheduler runs it.

    Raises:
        OSError: it cannot be read.
    """
    path = Path(os.path.normpath(workdir / batch["script"]))
    with path.open("rb") as file:
        first = os.fsdecode(file.readline(4096)).rstrip()
    shell = shlex.split(first[2:]) if first.startswith("#!") else list(_DEFAULT_SHELL)
    return [*shell, str(path), *args]


def find_script_fault(batch: Mapping[str, str], workdir: Path) -> str:
    """Why the script cannot run here; "" where it can."""
    folder = script_folder(batch, workdir)
    if not folder.is_dir():
        return f"the folder {folder} that the script names with --chdir is not there"
    try:
        render_batch_argv(batch, (), workdir)
    except (OSError, ValueError) as error:
        return f"the script {batch['script']} cannot be read: {error}"
    return ""


def render_batch_environment(
    launch: LaunchSpec, terms: AttemptTerms, *, base: Mapping[str, str], run_dir: str, workdir: Path
) -> dict[str, str]:
    """What the scheduler set for the job, as if the script itself were it."""
    env = {name: value for name, value in base.items() if not name.startswith(_INNER)}
    env.update(launch.env)
    env.update(render_run_environment(launch, terms, run_dir=run_dir))
    env["SLURM_SUBMIT_DIR"] = str(workdir)
    if launch.batch and launch.batch.get("name"):
        env["SLURM_JOB_NAME"] = launch.batch["name"]
    return env


def read_job_shape(env: Mapping[str, str]) -> dict[str, object]:
    """The machines and the number of tasks that the scheduler has given the job; {} where it does not say."""
    machines = _expand_hosts(env.get("SLURM_JOB_NODELIST", ""))
    if not machines:
        return {}
    each = [int(one[1]) * int(one[2] or 1) for one in _TASKS.finditer(env.get("SLURM_TASKS_PER_NODE", ""))]
    asked = env.get("SLURM_NTASKS", "")
    return {"machines": machines, "tasks": int(asked) if asked.isdigit() else sum(each) or len(machines)}


def _expand_hosts(text: str) -> list[str]:
    """`n[01-03,7],head` as names."""
    found = []
    for listed in _LISTED.finditer(text):
        parts = [_expand_range(one[1]) if one[1] is not None else [one[2]] for one in _PART.finditer(listed[1])]
        found += ["".join(words) for words in itertools.product(*parts)]
    return found


def _expand_range(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        is_range = first.isdigit() and last.isdigit()
        numbers += [str(at).zfill(len(first)) for at in range(int(first), int(last) + 1)] if is_range else [part]
    return numbers


def expand_pattern(pattern: str, env: Mapping[str, str]) -> str:
    """A path of `--output` as the scheduler reads it; what it leaves alone stays."""
    known = {
        "%": "%",
        "A": env.get("SLURM_JOB_ID", ""),
        "j": env.get("SLURM_JOB_ID", ""),
        "J": env.get("SLURM_JOB_ID", ""),
        "x": env.get("SLURM_JOB_NAME", ""),
        "u": env.get("USER", ""),
        "N": env.get("SLURMD_NODENAME", "").partition(".")[0],
        "n": "0",
        "t": "0",
        "a": "4294967294",
        "b": "4",
        "s": "batch",
    }

    def put(found: re.Match[str]) -> str:
        value = known.get(found[2])
        if value is None:
            return found[0]
        return value.zfill(int(found[1])) if found[1] and value.isdigit() else value

    return _PATTERN.sub(put, pattern)


def link_logs(launch: LaunchSpec, env: Mapping[str, str], workdir: Path, log: Path) -> list[str]:
    """Where the script's own options put its log, put a link to that of its rank; what was made.

    A file that is there is left alone, and so is what cannot be written: it is no more than a convenience.
    """
    batch, made = launch.batch or {}, []
    for name in ("output", "error"):
        if name not in batch:
            continue
        path = Path(os.path.normpath(script_folder(batch, workdir) / expand_pattern(batch[name], env)))
        with suppress(OSError):
            if path.is_symlink():
                path.unlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(log)
            made.append(str(path))
    return made
