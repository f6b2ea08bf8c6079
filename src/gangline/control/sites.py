"""Checks of a spec that need the machines of its pool, and what is done where those cannot be asked.

A pool that cannot be asked keeps no run out of the queue: the checks come when its agents start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.domain.errors import BackendError, SpecInvalid, Transient
from gangline.domain.spec import ResumeMode, RunSpec
from gangline.ports import Backend, Site
from gangline.rundir.checkpoints import pick_newest
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir

__all__ = ["Sites", "check_on_site"]


class Sites:
    """The machines of each pool, those that are gone included."""

    def __init__(self, backends: Mapping[str, Backend], home: Home) -> None:
        self._backends = backends
        self._home = home

    def of(self, pool: str) -> Site:
        """The machines of a pool; of one that is not configured any more, machines that nobody can ask."""
        backend = self._backends.get(pool)
        return _GoneSite(pool) if backend is None else backend.site

    def checkpoints_of(self, pool: str, run_id: str) -> str:
        """The folder in which a run of a pool saves where its spec names none, on its machines."""
        backend = self._backends.get(pool)
        run_dir = self._home.run(run_id)
        return str((run_dir if backend is None else RunDir(Path(backend.places(run_id).run_dir))).checkpoints)


def check_on_site(spec: RunSpec, site: Site, client: Mapping[str, Any]) -> tuple[RunSpec, list[str]]:
    """The spec with the interpreter of its ranks; and what could not be checked, in words for people.

    Raises:
        SpecInvalid: the interpreter or the checkpoint folder is not as it has to be.
    """
    site.check(spec)
    try:
        python = site.python(spec.environment.python, client)
        _check_folders(spec, site)
        doubts = []
    except BackendError as error:
        python = site.unseen_python(spec.environment.python)
        told = f"Interpreter and checkpoint folder were not looked at, agents do that when they start. {error.for_run}"
        doubts = [told]
    return replace(spec, environment=replace(spec.environment, python=python)), doubts


def _check_folders(spec: RunSpec, site: Site) -> None:
    policy = spec.checkpoint
    if policy.path is None:
        return
    if policy.resume is ResumeMode.REQUIRED and policy.start_from is None:
        _check_there_is_one(policy.path, site)
    site.probe_writable(policy.path, "--checkpoint-path")


def _check_there_is_one(folder: str, site: Site) -> None:
    """Look for a checkpoint to start from.

    Raises:
        SpecInvalid: there is none that is complete; what was found instead is named.
    """
    found, skipped = pick_newest(reversed(site.checkpoints(folder)))
    if found is None:
        why = f"{skipped[0].path.name} is not: {skipped[0].why_not}" if skipped else "There is no checkpoint at all"
        raise SpecInvalid(
            f"--resume required finds no complete checkpoint in `{folder}`",
            why=why,
            fix="Name the folder that holds one with --checkpoint-path, or leave --resume required out.",
        )


class _GoneSite:
    """Implements `gangline.ports.Site` for a pool that is not configured any more."""

    def __init__(self, pool: str) -> None:
        self._fault = Transient(
            f"Pool `{pool}` is not configured any more", fix="`gangline pools add` brings it back under its name."
        )

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:  # noqa: ANN401 - in the place of every method
        raise self._fault

    def unseen_python(self, asked: str | None) -> str:
        return asked or "python3"

    check = python = probe_writable = checkpoints = checkpoint = _refuse
