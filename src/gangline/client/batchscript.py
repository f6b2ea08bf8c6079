"""`--sbatch old.sbatch`: an existing script of Slurm becomes the entry of a run, as it is."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path

from gangline.client.entry import relative_entry
from gangline.domain.batchscript import parse_batch_script
from gangline.domain.errors import SpecInvalid
from gangline.domain.naming import name_from
from gangline.domain.spec import EntryKind, RunSpec, Strategy

__all__ = ["adopt_batch_script"]


def adopt_batch_script(spec: RunSpec, *, cwd: Path, root: Path) -> RunSpec:
    """The spec with the script as its command, and what its `#SBATCH` lines say; unchanged where there is no script.

    Raises:
        SpecInvalid: it cannot be read, is no batch script, or lies outside the project; or what goes with it does not.
    """
    script = spec.slurm.script
    if script is None:
        return spec
    _check_company(spec)
    relative = relative_entry(replace(spec, entry=script, entry_kind=EntryKind.SCRIPT), cwd=cwd, root=root).entry
    try:
        text = (cwd / relative).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise SpecInvalid(f"The script `{script}` cannot be read", why=error.strerror or str(error)) from error
    found = parse_batch_script(text, script)
    named = spec.name or (name_from(found.options["job-name"]) if found.options.get("job-name") else None)
    return replace(
        spec,
        entry=f"./{posixpath.normpath(relative)}",
        entry_kind=EntryKind.COMMAND,
        name=named or name_from(Path(relative).stem),
        strategy=Strategy.NONE,
        resources=replace(spec.resources, gpus_per_node=spec.resources.gpus_per_node or 0),
        slurm=replace(spec.slurm, script=posixpath.normpath(relative), directives=found.options),
    )


def _check_company(spec: RunSpec) -> None:
    resources, script = spec.resources, spec.slurm.script
    if spec.entry not in {"", script}:
        raise SpecInvalid(f"`{spec.entry}` contradicts --sbatch {script}", why="Each names what runs")
    for flag, value in {"--nodes": resources.nodes, "--procs-per-node": resources.procs_per_node or 1}.items():
        if value != 1:
            raise SpecInvalid(
                f"{flag} contradicts --sbatch",
                why="How many nodes and tasks there are stands in the script, which starts them itself",
                fix=f"Change the #SBATCH lines of {script}, or leave {flag} out.",
            )
