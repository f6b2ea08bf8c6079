"""A cluster as files and programs, seen from its login node: interpreters, checkpoint folders.

Nothing is asked over a connection that is not there: who submits must not wait for one.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gangline.backends.slurm.link import Link
from gangline.backends.slurm.options import check_options, merge_options
from gangline.domain.errors import AuthFailed, BackendError, SpecInvalid, Transient
from gangline.domain.pool import PoolStatus, SlurmPool
from gangline.domain.spec import RunSpec, SlurmOptions
from gangline.rundir.checkpoints import FoundCheckpoint

__all__ = ["SlurmSite"]

_FIRST_PATIENCE_S = 5.0
"""How long the first connection since the server started is waited for."""
_PYTHON_S = 20.0
_DEPENDENCY = re.compile(
    r"(singleton|(after|afterany|afternotok|afterok|afterburstbuffer|aftercorr|expand)(:\d+([_+]\d+)?)+)"
)
_DEFAULT_PYTHON = "python3"


class SlurmSite:
    """Implements `gangline.ports.Site` for one pool."""

    def __init__(self, pool: SlurmPool, link: Link, *, first_patience_s: float = _FIRST_PATIENCE_S) -> None:
        self._pool = pool
        self._link = link
        self._first_patience_s = first_patience_s

    def check(self, spec: RunSpec) -> None:
        options = merge_options(self._pool.defaults, spec.slurm)
        check_options(options)
        _check_dependency(options)
        if options.gres is not None and spec.resources.gpus_per_node and "gpu" in options.gres:
            raise SpecInvalid(
                f"--gres asks for `{options.gres}`, and --gpus-per-node for {spec.resources.gpus_per_node}",
                why="Both are devices of each node",
                fix="Keep one of them; for a kind of device, write --gres gpu:a100:8 --gpus-per-node 0.",
            )

    def python(self, asked: str | None, client: Mapping[str, Any]) -> str:  # noqa: ARG002 - it is of another machine
        """What was asked for, else what the pool says. A bare name is looked up where ranks start, after `setup`."""
        python = self.unseen_python(asked)
        if "/" not in python:
            return python
        if not python.startswith("/"):
            raise SpecInvalid(
                f"The interpreter `{python}` is not an absolute path",
                why=f"It has to be one of the machines of pool `{self._pool.name}`",
                fix="Give --python the whole path there, or a bare name such as python3.11.",
            )
        self._connect()
        tried = [python] if posixpath.basename(python).startswith("python") else [f"{python}/bin/python", python]
        for path in tried:
            ran = self._link.run((path, "-I", "-c", "import sys; print(sys.version_info[:2])"), timeout_s=_PYTHON_S)
            if ran.rc == 0:
                return path
        said = (ran.err or ran.out).strip().splitlines()
        raise SpecInvalid(
            f"`{python}` is no interpreter that runs on the login node of pool `{self._pool.name}`",
            why=said[-1][:300] if said else f"It ended with {ran.rc}",
            fix="Give --python an interpreter, or the folder of an environment, on the cluster.",
        )

    def unseen_python(self, asked: str | None) -> str:
        return asked or self._pool.ranks_python or _DEFAULT_PYTHON

    def probe_writable(self, folder: str, flag: str) -> None:
        self._connect()
        found = self._link.probe(folder)
        if not found.exists or not found.writable:
            raise SpecInvalid(
                f"Nothing can be written to `{folder}` on pool `{self._pool.name}`",
                why=found.why_not or "The folder is not there and cannot be made",
                fix=f"Give {flag} a folder of the cluster that you may write to.",
            )

    def checkpoints(self, root: str) -> list[FoundCheckpoint]:
        self._connect()
        return [FoundCheckpoint(**{**one, "path": Path(one["path"])}) for one in self._link.checkpoints(root)]

    def checkpoint(self, folder: str) -> FoundCheckpoint | None:
        self._connect()
        real = self._link.run(("readlink", "-e", "--", folder)).out.strip()
        if not real:
            return None
        found = [one for one in self.checkpoints(posixpath.dirname(real)) if str(one.path) == real]
        if found:
            return found[0]
        why = "its name is not that of a checkpoint folder"
        return FoundCheckpoint(path=Path(real), step=0, attempt=0, why_not=why)

    def _connect(self) -> None:
        """See that there is a connection; one that was never tried since the server started gets a few seconds.

        Raises:
            Transient, AuthFailed: there is none.
        """
        if self._link.state().status is PoolStatus.UNTRIED:
            trying = threading.Thread(target=self._greet, name="gangline-hello", daemon=True)
            trying.start()
            trying.join(self._first_patience_s)
        state = self._link.state()
        if state.status is PoolStatus.READY:
            return
        needs_person = state.status in {PoolStatus.LOGIN_NEEDED, PoolStatus.HOST_KEY_CHANGED}
        cls = AuthFailed if needs_person else Transient
        fix = f"Log in: {state.command}" if state.command else ""
        what = f"Pool `{self._pool.name}` cannot be asked now"
        raise cls(what, why=state.text.rstrip("."), fix=fix, brief=state.brief)

    def _greet(self) -> None:
        try:
            self._link.hello()
        except BackendError:
            return  # the state tells


def _check_dependency(options: SlurmOptions) -> None:
    """Refuse what sbatch would take for something else, or Slurm wait for without end.

    Raises:
        SpecInvalid
    """
    if options.dependency is None:
        return
    for part in re.split(r"[,?]", options.dependency):
        if not _DEPENDENCY.fullmatch(part.strip()):
            raise SpecInvalid(
                f"--dependency is `{options.dependency}`",
                why=f"`{part}` is no dependency of Slurm",
                fix="Write afterok:JOB, afterany:JOB, afternotok:JOB, after:JOB or singleton; several with commas.",
            )
    if "," in options.dependency and "?" in options.dependency:
        fix = "Join all by `,` (every one must hold), or all by `?` (one is enough)."
        raise SpecInvalid(f"--dependency is `{options.dependency}`", why="`,` and `?` cannot be mixed", fix=fix)
