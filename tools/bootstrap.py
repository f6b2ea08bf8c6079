"""Make the virtual environment of a checkout: `make setup` runs this with whatever Python the machine has.

Safe to start several times at once: a lock lets one work and the others find it done. A stamp in the environment, newer
than pyproject.toml, makes the next call cost nothing. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 10)
COMPILED = ("src", "examples")
EXTRAS = "torch,search,debug,metaflow,docs,test,check"
NO_PIP = """This Python ({python}) cannot make virtual environments with pip in them: the module `ensurepip` is missing.
On Debian and Ubuntu it comes with a package of its own; install it and run the same command again:
    apt install python{major}.{minor}-venv
Or choose another interpreter: make PYTHON=/path/to/python3 …"""


def main() -> int:
    """Make or refresh the environment; returns the exit code."""
    options = _parse_options()
    if sys.version_info < MINIMUM:
        print(f"Gangline needs Python >= 3.10; {sys.executable} is {sys.version.split()[0]}.", file=sys.stderr)
        return 1
    venv = Path(options.venv).absolute()
    with _lock(venv.with_name(f"{venv.name}.lock")):
        stamp = venv / ".ready"
        if _is_fresh(stamp, extras=options.extras):
            return 0
        stamp.unlink(missing_ok=True)
        return _prepare(venv, stamp, extras=options.extras)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=".venv", help="folder of the environment")
    parser.add_argument("--extras", default=EXTRAS, help="extras of pyproject.toml to install")
    return parser.parse_args()


def _prepare(venv: Path, stamp: Path, *, extras: str) -> int:
    python = venv / "bin" / "python"
    if not _works(python) and not _create(venv):
        return 1
    print(
        f"Installing Gangline and its extras ({extras}) into {venv} (once; PyTorch is the largest part) …", flush=True
    )
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[{extras}]"], check=True)
    folders = [str(ROOT / folder) for folder in COMPILED]
    subprocess.run([python, "-m", "compileall", "-q", *folders], check=True)
    stamp.write_text(extras + "\n", encoding="utf-8")
    return 0


def _create(venv: Path) -> bool:
    """A new environment with pip in it; False, with advice on stderr, where this machine cannot make one."""
    shutil.rmtree(venv, ignore_errors=True)
    if importlib.util.find_spec("ensurepip") is not None:
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False).returncode == 0
    elif shutil.which("virtualenv"):
        made = (
            subprocess.run(["virtualenv", "--quiet", "--python", sys.executable, str(venv)], check=False).returncode
            == 0
        )
    else:
        made = False
    if not made:
        version = sys.version_info
        print(NO_PIP.format(python=sys.executable, major=version.major, minor=version.minor), file=sys.stderr)
    return made


def _works(python: Path) -> bool:
    """Whether an environment is there and whole: a moved or half-made one is not."""
    if not python.exists():
        return False
    probe = [str(python), "-c", "import pip, sys; sys.exit(sys.version_info < (3, 10))"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


def _is_fresh(stamp: Path, *, extras: str) -> bool:
    try:
        made = stamp.stat().st_mtime
        same = stamp.read_text(encoding="utf-8").strip() == extras
    except FileNotFoundError:
        return False
    return same and all(made >= path.stat().st_mtime for path in (ROOT / "pyproject.toml", Path(__file__)))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
