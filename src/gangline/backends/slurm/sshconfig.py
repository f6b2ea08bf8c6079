"""What the user's configuration of `ssh` makes of a pool's host, by `ssh -G`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from gangline.backends.slurm.ssh import Reach, render_environ

__all__ = ["fetch_config", "takes_any_key"]

_PATIENCE_S = 10.0


def fetch_config(reach: Reach, environ: Mapping[str, str]) -> dict[str, str]:
    """Its settings, by their names in small letters; empty where it cannot be told."""
    try:
        done = subprocess.run(
            reach.config_command(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            env=render_environ(environ),
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.partition(" ") for line in done.stdout.decode(errors="replace").splitlines())
    return {key.lower(): value.strip() for key, _, value in pairs}


def takes_any_key(config: Mapping[str, str]) -> bool:
    """Whether the user wants host keys taken unseen. A changed one would be taken, too: Gangline never lets it."""
    return config.get("stricthostkeychecking") in {"false", "no", "off"}
