"""What exec start puts into a Python rank: a folder with a `sitecustomize` in front of PYTHONPATH, and where it reports to.

Standard library only. The injected text itself is `injected/sitecustomize.py` and `failure.py`.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from gangline.agent.starter import RankStart
from gangline.rundir.files import write_bytes

__all__ = ["STACKS_DESCRIPTOR", "STACKS_SIGNAL", "VARIABLE", "bundle_root", "injected_environment", "render_injection", "write_injected"]

STACKS_SIGNAL = 62
"""A real-time signal that training code does not use; it ends processes that did not register it, see `RankStart.stacks_path`."""
STACKS_DESCRIPTOR = 250
"""Where a rank holds its stacks file open: high, so that the script's own files get the numbers that they would get."""
VARIABLE = "GANGLINE_INJECTED"
_SEPARATOR = "\x1f"
_FILES = {"sitecustomize.py": "injected/sitecustomize.py", "failure.py": "failure.py"}


def write_injected(folder: Path) -> None:
    """Write the files that ranks load. Several agents may do so at once: each file appears by rename.

    Raises:
        OSError: the folder cannot be written.
    """
    for name, source in _FILES.items():
        content = pkgutil.get_data("gangline.agent", source)
        if content is None:
            raise OSError(f"the agent's bundle has no {source}")
        write_bytes(folder / name, content)


def render_injection(rank: RankStart, *, folder: Path, bundle: str) -> dict[str, str]:
    """The two variables that differ from the rank's own environment. Pure.

    Args:
        folder: where `write_injected` wrote.
        bundle: see `bundle_root`; appended to the end of the rank's `sys.path`.
    """
    old = rank.env.get("PYTHONPATH")
    state = "unset" if old is None else "set" if old else "empty"
    fields = (state, bundle, rank.error_path, rank.stacks_path, str(STACKS_SIGNAL), str(STACKS_DESCRIPTOR))
    return {"PYTHONPATH": f"{folder}{os.pathsep}{old}" if old else str(folder), VARIABLE: _SEPARATOR.join(fields)}


def bundle_root(file: str = __file__) -> str:
    """The zipapp, or the source folder, that this module was imported from: `import gangline` works with it on the path."""
    return str(Path(file).absolute().parents[2])


def injected_environment(rank: RankStart, *, folder: Path) -> Mapping[str, str]:
    """The rank's environment with the injection."""
    return {**rank.env, **render_injection(rank, folder=folder, bundle=bundle_root())}
