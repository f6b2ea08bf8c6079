"""Whether what is to run is there: seen at submit, where a typo costs a second and not a night in the queue."""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gangline.domain.errors import SpecInvalid, nearest
from gangline.domain.launched import Launched, find_launched, render_instead, words_of
from gangline.domain.spec import EntryKind, RunSpec
from gangline.snapshot.manifest import Manifest

__all__ = ["check_entry", "relative_entry"]

_PROBE_TIMEOUT_S = 30.0
_FROM_HERE = " Paths start from the folder in which you submit, also those of a run file."


def relative_entry(spec: RunSpec, *, cwd: Path, root: Path) -> RunSpec:
    """The spec with a script or notebook that was named by an absolute path inside the project named relative to `cwd`.

    Raises:
        SpecInvalid: it lies outside the project.
    """
    if spec.entry_kind not in {EntryKind.SCRIPT, EntryKind.NOTEBOOK}:
        return spec
    path = Path(os.path.abspath(cwd / Path(spec.entry).expanduser()))  # noqa: PTH100 - without following links
    for base in (root, Path(os.path.realpath(root))):
        if path.is_relative_to(base):
            entry = os.path.relpath(path, cwd)
            return replace(spec, entry=f"./{entry}" if entry.startswith("-") else entry)  # an option for Python else
    raise SpecInvalid(
        f"`{spec.entry}` lies outside the project {root}",
        why="Only the project is packed.",
        fix="Submit from the project that it belongs to.",
    )


def check_entry(
    spec: RunSpec, manifest: Manifest, *, workdir: str, python: Path | None, path: str | None
) -> tuple[str, ...]:
    """Refuse an entry that the ranks will not find, and a script behind it (`bash x.sh`, `torchrun x.py`).

    Args:
        workdir: folder in the tree in which ranks start.
        python: the interpreter of the ranks; None: they run on other machines, of whose programs nothing is known.
        path: their PATH.
    Returns:
        What may not be what was meant, for people.
    Raises:
        SpecInvalid: it is not there; the nearest thing that is gets named.
    """
    if spec.slurm.script is not None:
        _check_file(spec.slurm.script, manifest, workdir, what="batch script")
        return ()
    if spec.entry_kind is EntryKind.MODULE:
        _check_module(spec.entry, manifest, workdir, python)
    elif spec.entry_kind is EntryKind.COMMAND:
        _check_program(spec.entry, manifest, workdir, path, is_here=python is not None)
    else:
        _check_file(spec.entry, manifest, workdir, what="script" if spec.entry_kind is EntryKind.SCRIPT else "notebook")
    return tuple(_check_launched(spec, manifest, workdir))


def _check_launched(spec: RunSpec, manifest: Manifest, workdir: str) -> Iterator[str]:
    launched = find_launched(words_of(spec))
    for found in launched:
        what, script = f"script for `{found.program}`", Path(found.script)
        if script.is_absolute():
            if any(script.is_relative_to(root) for root in {manifest.code.root, os.path.realpath(manifest.code.root)}):
                yield f"{found.script} is run from where it lies, not from the snapshot; name it by a relative path"
        elif found.sure:
            _check_file(found.script, manifest, workdir, what=what)
        elif not _is_file(found.script, manifest, workdir):
            yield f"{found.script} is not in the snapshot; {found.program} finds it only if the command makes it first"
    yield from (_says_spread(spec, found) for found in launched[:1] if found.spreads)


def _says_spread(spec: RunSpec, found: Launched) -> str:
    resources = spec.resources
    ranks = resources.nodes * (resources.procs_per_node or 1)
    each = f"{found.procs_per_node} processes" if found.procs_per_node else "processes of its own"
    options = ["--nodes", str(resources.nodes)] if resources.nodes > 1 else []
    of = f"each of the {ranks} ranks" if ranks > 1 else "one rank"
    return (
        f"{found.program} starts {each} inside {of}, which Gangline neither sees nor restarts; instead, type: "
        f"{render_instead(found, options)}"
    )


def _is_file(entry: str, manifest: Manifest, workdir: str) -> bool:
    """Whether the tree has that file; yes also behind a link to a folder, which may lead anywhere."""
    wanted = posixpath.normpath(posixpath.join(workdir, entry))
    found = manifest.find(wanted)
    if found is not None:
        return found.kind != "dir"
    return any(item.kind == "link" and wanted.startswith(f"{item.path}/") for item in manifest.files)


def _check_file(entry: str, manifest: Manifest, workdir: str, *, what: str) -> None:
    if _is_file(entry, manifest, workdir):
        return
    wanted = posixpath.normpath(posixpath.join(workdir, entry))
    if any(item.path.startswith(f"{wanted}/") for item in manifest.files):
        raise SpecInvalid(f"`{entry}` is a folder", fix=f"Name a {what} in it, or use -m for a package.")
    if rule := _excluding_rule(wanted, manifest):
        raise SpecInvalid(
            f"The {what} `{entry}` is left out of the snapshot", why=f"The rule: {rule}.", fix=f"Add --include {wanted}"
        )
    raise SpecInvalid(
        f"There is no {what} `{entry}` in {_name_folder(manifest, workdir)}",
        fix=_suggest(wanted, manifest, workdir),
    )


def _check_module(module: str, manifest: Manifest, workdir: str, python: Path | None) -> None:
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise SpecInvalid(f"`{module}` is not the name of a module", fix="Write package.module, without .py.")
    stem = posixpath.normpath(posixpath.join(workdir, *parts))
    if manifest.find(f"{stem}.py") or manifest.find(f"{stem}/__main__.py"):
        return
    top = posixpath.normpath(posixpath.join(workdir, parts[0]))
    in_tree = any(item.path == f"{top}.py" or item.path.startswith(f"{top}/") for item in manifest.files)
    if in_tree and manifest.find(f"{stem}/__init__.py"):
        raise SpecInvalid(f"`{module}` is a package that cannot be run", why="It has no __main__.py.")
    if in_tree or (python is not None and not _is_installed(parts[0], python)):
        where = "the project" if in_tree else f"the project, nor in {python}"
        raise SpecInvalid(f"There is no module `{module}` in {where}", fix=_suggest(f"{stem}.py", manifest, workdir))


def _is_installed(module: str, python: Path) -> bool:
    """Whether an interpreter finds a module; True also where it cannot be asked."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        done = subprocess.run(
            [str(python), "-c", code, module],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode == 0


def _check_program(program: str, manifest: Manifest, workdir: str, path: str | None, *, is_here: bool) -> None:
    is_script = program.endswith(".py") and _is_file(program, manifest, workdir)
    if "/" not in program:
        if shutil.which(program, path=path) is None and is_script:
            raise SpecInvalid(f"`{program}` is a Python script, not a program", fix=f"Write gangline submit {program}")
        if is_here and shutil.which(program, path=path) is None:
            raise SpecInvalid(
                f"There is no program `{program}` on PATH",
                fix="Check the name, or write ./NAME for one of the project.",
            )
        return
    if program.startswith("/"):
        if is_here and (not os.access(program, os.X_OK) or Path(program).is_dir()):
            raise SpecInvalid(f"`{program}` cannot be executed", fix="Check the path.")
        return
    _check_file(program, manifest, workdir, what="program")
    entry = manifest.find(posixpath.normpath(posixpath.join(workdir, program)))
    if entry is not None and entry.kind == "file" and not entry.mode & 0o111:
        if is_script:
            raise SpecInvalid(f"`{program}` cannot be executed", fix=f"Write gangline submit {program}")
        raise SpecInvalid(
            f"`{program}` cannot be executed", fix=f"chmod +x {program}, or run it by its interpreter: bash {program}"
        )


def _excluding_rule(path: str, manifest: Manifest) -> str | None:
    for item in manifest.code.excluded:
        if path in {item.path, *item.examples} or (item.path.endswith("/") and path.startswith(item.path)):
            return item.rule
    return None


def _name_folder(manifest: Manifest, workdir: str) -> str:
    """Where an entry was looked for: the folder in which the ranks start."""
    root = manifest.code.root
    if workdir == ".":
        return root or "the project"
    return posixpath.join(root, workdir) if root else f"{workdir} of the project"


def _suggest(wanted: str, manifest: Manifest, workdir: str) -> str:
    suffix = posixpath.splitext(wanted)[1]
    files = [item.path for item in manifest.files if item.path.endswith(suffix)]
    shown = [posixpath.relpath(path, workdir) for path in files]
    same_name = [path for path in shown if posixpath.basename(path) == posixpath.basename(wanted)]
    if same_name:
        closest = min(same_name, key=lambda path: path.count("/"))
        return f"Did you mean `{closest}`?{_FROM_HERE if workdir != '.' else ''}"
    few = 8
    if len(shown) <= few:
        return (
            _nearest(posixpath.relpath(wanted, workdir), shown)
            if shown
            else f"There is no {suffix or 'such'} file in it at all."
        )
    close = _nearest(posixpath.relpath(wanted, workdir), shown)
    return (
        close if close.startswith("Did you mean") else "Check the path; it starts from the folder in which you submit."
    )


def _nearest(wanted: str, shown: list[str]) -> str:
    """As `nearest`; that both end in `.py` makes no likeness."""
    by_stem = {posixpath.splitext(path)[0]: path for path in shown}
    said = nearest(posixpath.splitext(wanted)[0], by_stem)
    close = said.partition("`")[2].partition("`")[0]
    return f"Did you mean `{by_stem[close]}`?" if close else f"Valid: {', '.join(sorted(shown))}."
