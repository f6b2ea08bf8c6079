"""The environment that commands of the scheduler get on the login node. Standard library only."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
from collections.abc import Mapping

from gangline.agent.leaking import VISIBILITY_VARIABLES, scrub

__all__ = ["extend_by_login", "fetch_login_environ", "render_command_environ"]

_FORMATS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SPRIO_")
_OF_WHO_STARTED = frozenset(
    {"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONPATH", "PYTHONHOME", "OLDPWD", *VISIBILITY_VARIABLES}
)
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"})
_USUAL_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/opt/slurm/current/bin",
    "/usr/local/slurm/bin",
    "/cm/shared/apps/slurm/current/bin",
)
_PATIENCE_S = 20.0


def render_command_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what changes the form of answers or overrides what a batch script says, and what an outer job has left.

    Slurm gives a job the environment of `sbatch`.
    """
    kept = {name: environ[name] for name in _KEPT if name in environ}
    plain = {name: value for name, value in scrub(environ).items() if not name.startswith(_FORMATS)}
    return {**{name: value for name, value in plain.items() if name not in _OF_WHO_STARTED}, **kept}


def extend_by_login(environ: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """Also look for commands where a login shell would, and after that where Slurm often lies."""
    folders = [*environ.get("PATH", "").split(":"), *login.get("PATH", "").split(":"), *_USUAL_FOLDERS]
    kept = {name: login[name] for name in _KEPT if name in login}
    path = ":".join(dict.fromkeys(folder for folder in folders if folder))
    return {**kept, **environ, "PATH": path}


def fetch_login_environ() -> dict[str, str]:
    """What the user's login shell sets; {} where it does not say.

    `ssh HOST COMMAND` reads no profile, and that is where many sites put Slurm on the path.
    """
    token = secrets.token_hex(8)
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    arguments = [f"-{os.path.basename(shell)}", "-c", f"echo {token}; env -0; echo {token}"]
    try:
        done = subprocess.run(
            arguments,
            executable=shell,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    mark = token.encode() + b"\n"
    parts = done.stdout.split(mark)
    if len(parts) < 3:  # noqa: PLR2004 - before, between and after the two marks
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in parts[1].split(b"\0"))
    return {name: value for name, is_pair, value in pairs if is_pair}
