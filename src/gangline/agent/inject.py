"""What the agent puts into Python ranks: a folder in front of PYTHONPATH with a `sitecustomize`.

In it, `offered/` is what ends their path: a package `gangline` that is no more than its first file, and takes its
modules from the bundle. The bundle itself is on no path: `importlib.metadata`, which torch asks, opens every zip that
is, and never closes it.

The injected text itself is `injected/sitecustomize.py`, `failure.py`, `debugger.py`, and for warm start
`warmhelper.py` and `warmchild.py`. Standard library only.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gangline.agent.starter import RankStart
from gangline.rundir.files import write_bytes

__all__ = [
    "PROBE",
    "STACKS_DESCRIPTOR",
    "STACKS_SIGNAL",
    "bundle_root",
    "render_beside",
    "render_helper_environment",
    "render_injection",
    "render_settings",
    "write_injected",
]

STACKS_SIGNAL = 62
"""A real-time signal that training code does not use. It ends a process that did not register it; one that did made
its `RankStart.stacks_path`."""
STACKS_DESCRIPTOR = 250
"""Where a rank holds its stacks file open: high, so that the script's own files get the numbers that they would get."""
PROBE = "raise SystemExit('this interpreter does not load what PYTHONPATH has for it')"
"""Program of the helper's first start; it runs only where nothing was injected."""
_VARIABLE = "GANGLINE_INJECTED"
_SEPARATOR = "\x1f"
_OFFERED = "offered"
_FILES = {
    "sitecustomize.py": "injected/sitecustomize.py",
    "failure.py": "failure.py",
    "debugger.py": "debugger.py",
    "warmhelper.py": "warmhelper.py",
    "warmchild.py": "warmchild.py",
}


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
    write_bytes(folder / _OFFERED / "gangline" / "__init__.py", _first_file())


def render_injection(rank: RankStart, *, folder: Path) -> dict[str, str]:
    """The environment of a rank under exec start. Pure.

    Args:
        folder: where `write_injected` wrote.
    """
    return _inject(rank.env, {"mode": "exec", **_offer(folder), **render_settings(rank)}, folder)


def render_helper_environment(
    env: Mapping[str, str], *, folder: Path, socket: int, start: str, modules: Sequence[str], timeout_s: int
) -> dict[str, str]:
    """The environment of the warm helper. Pure.

    Args:
        socket: descriptor of its end of the connection.
        start: what the interpreter will put in front of `sys.path`.
        modules: what it imports; see `warmhelper.py`.
        timeout_s: how long it may take over that.
    """
    settings = {
        "mode": "probe",
        **_offer(folder),
        "socket": str(socket),
        "start": start,
        "modules": " ".join(modules),
        "timeout_s": str(timeout_s),
    }
    return _inject({**env, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}, settings, folder)


def render_beside(env: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """The environment of what a person starts beside a rank: Python finds `gangline` there as the rank does. Pure."""
    return _inject(env, {"mode": "beside", **_offer(folder)}, folder)


def render_settings(rank: RankStart) -> dict[str, str]:
    """Where a rank reports to. Pure."""
    return {
        "error": rank.error_path,
        "stacks": rank.stacks_path,
        "signal": str(STACKS_SIGNAL),
        "descriptor": str(STACKS_DESCRIPTOR),
        **({"pdb": rank.pdb_path} if rank.pdb_path else {}),
    }


def bundle_root(file: str = __file__) -> str:
    """The zipapp or the source folder that this was imported from."""
    return str(Path(file).absolute().parents[2])


def _offer(folder: Path) -> dict[str, str]:
    """What makes `import gangline` work where it is not installed, and what shows that nothing is needed for that."""
    return {"bundle": bundle_root(), "offered": str(folder / _OFFERED)}


def _first_file() -> bytes:
    """The package's own first file, and where its modules are.

    Raises:
        OSError: the bundle has none.
    """
    content = pkgutil.get_data("gangline", "__init__.py")
    if content is None:
        raise OSError("the agent's bundle has no gangline/__init__.py")
    return content + f"\n__path__.append({str(Path(bundle_root(), 'gangline'))!r})\n".encode("utf-8", "surrogateescape")


def _inject(env: Mapping[str, str], settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    old = env.get("PYTHONPATH")
    told = {"pythonpath": "empty" if old == "" else "", **settings}
    return {
        **env,
        "PYTHONPATH": f"{folder}{os.pathsep}{old}" if old else str(folder),
        _VARIABLE: _SEPARATOR.join(f"{key}={value}" for key, value in told.items()),
    }
