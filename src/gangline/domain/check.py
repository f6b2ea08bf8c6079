"""What a spec must be before it may wait in a queue, and the defaults that a pool fills in.

Pure; standard library only.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from gangline.domain.errors import SpecInvalid, nearest
from gangline.domain.faults import Faults
from gangline.domain.launched import find_launched, words_of
from gangline.domain.naming import check_name, check_variable, name_from
from gangline.domain.spec import EntryKind, ResumeMode, RunSpec, Strategy

if TYPE_CHECKING:
    from gangline.domain.gang import PoolCapacity

__all__ = [
    "CHECKS",
    "MOST",
    "check_entry",
    "check_spec",
    "complete_spec",
    "doubt_gpus",
    "resolve_checkpoints",
]

MOST: Mapping[tuple[str, ...], int] = {
    ("priority",): 1_000_000_000,
    ("resources", "nodes"): 100_000,
    ("resources", "procs_per_node"): 10_000,
    ("resources", "gpus_per_node"): 10_000,
    ("resources", "cpus_per_rank"): 10_000,
    ("checkpoint", "keep_last"): 1_000_000,
    ("restarts", "max_restarts"): 1_000_000,
    ("restarts", "max_infrastructure_restarts"): 1_000_000,
    ("restarts", "max_preemptions"): 1_000_000,
    ("stop", "max_continuations"): 1_000_000,
}
"""The largest number that each key may hold, whatever its sign: above it is a slip of the finger."""

CHECKS = ("disk", "clock", "device", "allreduce")
"""Checks of nodes that a spec may ask for."""

_LEAST_LOG_BYTES = 1_000_000
"""A smaller limit could not hold the beginning and the end of anything."""

_MAX_STRING_BYTES = 128 * 1024 - 1
"""Longest single argument or `K=V` that Linux passes to a program."""
_MOST_COMPARED = 5000
_MOST_NAMED = 20
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_INTERPRETER = re.compile(r"(ba|da|z)?sh|python[0-9.]*|exec|env|time|nice")


def complete_spec(spec: RunSpec, capacity: PoolCapacity) -> RunSpec:
    """Fill in what depends on the pool: the name, ranks and accelerators per node.

    Without a word about ranks there is one per GPU asked for, else one; without a word about GPUs there is one per rank
    where the pool has any.
    """
    resources = spec.resources
    ranks = 1 if spec.strategy is Strategy.RAY else resources.gpus_per_node or 1
    procs = resources.procs_per_node or ranks
    gpus = resources.gpus_per_node
    if gpus is None:
        gpus = procs if capacity.devices else 0
    return replace(
        spec,
        name=spec.name or name_from(_program_name(spec)),
        resources=replace(resources, procs_per_node=procs, gpus_per_node=gpus),
        preflight=replace(spec.preflight, checks=_checks(spec)),
    )


def doubt_gpus(asked: RunSpec, capacity: PoolCapacity) -> str | None:
    """What to warn of where no number of GPUs was asked for, and a pool cannot say yet what its ranks would get."""
    says_itself = asked.slurm.script is not None or asked.slurm.gres is not None
    if asked.resources.gpus_per_node is not None or says_itself or capacity.knows_devices:
        return None
    number = "one GPU a rank" if capacity.devices else "no GPU"
    return (
        f"The cluster of pool `{asked.pool}` has not said yet what its nodes have: the run asks for {number}. "
        "Say how many it needs by --gpus-per-node, 0 for none."
    )


def check_spec(spec: RunSpec) -> None:
    """Refuse what no pool could run.

    Raises:
        SpecInvalid: names each key, its value, and what is valid.
    """
    if not spec.entry.strip() or "\0" in spec.entry:
        raise SpecInvalid("There is nothing to run", fix="Name a script, a module with -m, or a command after `--`.")
    faults = Faults()
    for check in (
        _check_own_name,
        _check_words,
        _check_sizes,
        _check_times,
        _check_environment,
        _check_folders,
        _check_signatures,
        _check_preflight,
        _check_strategy,
    ):
        with faults.gathered():
            check(spec)
    faults.raise_all("The spec")


def _check_own_name(spec: RunSpec) -> None:
    if spec.name is not None:
        check_name(spec.name)


def _check_strategy(spec: RunSpec) -> None:
    if spec.strategy is Strategy.RAY and (spec.resources.procs_per_node or 1) != 1:
        raise SpecInvalid(
            f"--procs-per-node is {spec.resources.procs_per_node}, and --strategy is ray",
            why="Each node of the run is one node of a Ray cluster, which starts as many workers as its tasks ask for",
            fix="Leave --procs-per-node out; --cpus-per-rank and --gpus-per-node say what a node offers.",
        )


def resolve_checkpoints(path: str, *, folder: str) -> str:
    """A checkpoint path as the server takes it: absolute, with `~` expanded.

    Args:
        folder: absolute; what a relative path starts from.
    Raises:
        SpecInvalid: it is empty, or names an object store.
    """
    if not path.strip():
        raise SpecInvalid("The checkpoint path is empty", fix="Name a folder, or leave it out.")
    _refuse_object_store(path)
    return posixpath.normpath(posixpath.join(folder, posixpath.expanduser(path)))


def check_entry(spec: RunSpec, paths: Collection[str]) -> str | None:
    """Look the entry point up in the packed tree.

    Args:
        paths: files of the tree, POSIX and relative to its root.
    Returns:
        A warning for people, or None.
    Raises:
        SpecInvalid: the tree has no such file; it names the nearest one.
    """
    workdir = "." if spec.snapshot is None else spec.snapshot.workdir
    if spec.slurm.script is not None:
        _check_file(spec.slurm.script, workdir, paths)
        return None
    for found in find_launched(words_of(spec)):
        if found.sure and not found.script.startswith("/"):
            _check_file(found.script, workdir, paths)
    if spec.entry_kind is EntryKind.MODULE:
        return _missing_module(spec.entry, workdir, paths)
    if spec.entry_kind is not EntryKind.COMMAND or ("/" in spec.entry and not spec.entry.startswith("/")):
        _check_file(spec.entry, workdir, paths)
    return None


def _checks(spec: RunSpec) -> tuple[str, ...]:
    """Names of checks, one each, in the order in which they are done; commas part them, too."""
    named = {name.strip() for text in spec.preflight.checks for name in text.split(",") if name.strip()}
    return tuple(sorted(named, key=lambda name: (CHECKS.index(name) if name in CHECKS else len(CHECKS), name)))


def _check_preflight(spec: RunSpec) -> None:
    for name in _checks(spec):
        if name not in CHECKS:
            raise SpecInvalid(
                f"There is no check `{name}`", why=f"--preflight takes: {', '.join(CHECKS)}.", fix=nearest(name, CHECKS)
            )
    if spec.preflight.min_bandwidth_bytes is not None and "allreduce" not in _checks(spec):
        raise SpecInvalid(
            "--preflight-min-bandwidth has nothing to measure", fix="Add --preflight allreduce, or leave it out."
        )


def _program_name(spec: RunSpec) -> str:
    launched = find_launched(words_of(spec))
    if spec.entry_kind is EntryKind.MODULE and not launched:
        return spec.entry
    program = (
        launched[0].script if launched else _program_of(spec) if spec.entry_kind is EntryKind.COMMAND else spec.entry
    )
    base = posixpath.basename(program.rstrip("/")) or "run"
    stem, _, suffix = base.rpartition(".")
    return stem if stem and suffix in {"py", "ipynb", "sh"} else base


def _program_of(spec: RunSpec) -> str:
    """What a command is known by: not the shell or interpreter that runs it, but what that is given."""
    words = [spec.entry, *spec.args]
    if len(words) > 2 and words[-2] == "-c":  # noqa: PLR2004 - one text: a line for a shell
        words = [word for word in words[-1].split() if not _ASSIGNMENT.match(word)]
    named = [word for word in words if not word.startswith("-")]
    if len(named) > 1 and _INTERPRETER.fullmatch(posixpath.basename(named[0])):
        del named[0]
    return named[0].strip("\"'();&|") if named else spec.entry


def _check_signatures(spec: RunSpec) -> None:
    if spec.signatures:
        from gangline.domain.signatures import parse_own  # noqa: PLC0415 - few specs have any, and each submit waits

        parse_own(spec.signatures)


def _check_words(spec: RunSpec) -> None:
    if not _PROJECT.fullmatch(spec.project):
        raise SpecInvalid(
            f"`{spec.project}` is no name of a project",
            why="Projects are named by 1 to 64 letters, digits, dots, dashes and underscores",
            fix="Correct --project.",
        )
    words = {"an argument": spec.args, "an --output": spec.outputs, "--data-version": (spec.data_version or "",)}
    words["a --label"] = (*spec.labels, *spec.labels.values())
    for what, values in words.items():
        for value in values:
            _check_string(what, value, value)
    if any(not name.strip() or "=" in name for name in spec.labels):
        raise SpecInvalid("The name of a --label is empty or holds a `=`", fix="Write --label NAME=VALUE.")
    if "" in spec.outputs:
        raise SpecInvalid("An --output is empty", fix="Give it a value, or leave it out.")


def _check_string(what: str, value: str, whole: str) -> None:
    if "\0" in value:
        raise SpecInvalid(f"{what[0].upper()}{what[1:]} holds a NUL character", why="No program can be given one")
    size = len(whole.encode("utf-8", "surrogateescape"))
    if size > _MAX_STRING_BYTES:
        raise SpecInvalid(
            f"{what[0].upper()}{what[1:]} has {size} bytes, {_MAX_STRING_BYTES} are possible",
            why="The system passes no longer one to a program",
            fix="Put it into a file of the project and pass the file's name.",
        )


def _check_sizes(spec: RunSpec) -> None:
    resources = spec.resources
    least = {
        "--nodes": (resources.nodes, 1),
        "--min-nodes": (resources.min_nodes, 1),
        "--same-failure-limit": (spec.restarts.same_failure_limit, 0),
        "--procs-per-node": (resources.procs_per_node, 1),
        "--gpus-per-node": (resources.gpus_per_node, 0),
        "--cpus-per-rank": (resources.cpus_per_rank, 1),
        "--memory": (resources.memory_bytes, 1),
        "--keep-last": (spec.checkpoint.keep_last, 0),
        "--max-restarts": (spec.restarts.max_restarts, 0),
        "--max-infra-restarts": (spec.restarts.max_infrastructure_restarts, 0),
        "--max-preemptions": (spec.restarts.max_preemptions, 0),
        "--max-continuations": (spec.stop.max_continuations, 0),
    }
    faults = Faults()
    for flag, (value, low) in least.items():
        if value is not None and value < low:
            faults.add(SpecInvalid(f"{flag} is {value}", fix=f"Give it a whole number from {low} up."))
    faults.raise_all("The spec")
    if resources.min_nodes is not None and resources.min_nodes > resources.nodes:
        raise SpecInvalid(
            f"At least {resources.min_nodes} nodes and at most {resources.nodes} are asked for",
            fix=f"Write --nodes {resources.nodes}:{resources.min_nodes}.",
        )
    limit = spec.logs.max_per_rank_bytes
    if limit < 0 or 0 < limit < _LEAST_LOG_BYTES:
        raise SpecInvalid(f"--log-limit is {limit} bytes", fix="Give it a size from 1MB up, or 0 for no limit.")
    for path, most in MOST.items():
        value = getattr(getattr(spec, path[0]), path[1]) if len(path) > 1 else getattr(spec, path[0])
        if value is not None and abs(value) > most:
            raise SpecInvalid(f"`{'.'.join(path)}` is {value}", fix=f"Give it a whole number up to {most:,}.")


def _check_times(spec: RunSpec) -> None:
    stop, restarts = spec.stop, spec.restarts
    times: Mapping[str, tuple[float | None, bool]] = {
        "--time-limit": (stop.time_limit_s, True),
        "--time-limit-notice": (stop.time_limit_notice_s, False),
        "--start-timeout": (stop.start_timeout_s, True),
        "--stop-grace": (stop.grace_s, False),
        "--failure-grace": (stop.failure_grace_s, False),
        "--hang-timeout": (spec.watch.hang_timeout_s, False),
        "--restart-backoff": (restarts.backoff_s, False),
        "--restart-max-backoff": (restarts.max_backoff_s, False),
    }
    faults = Faults()
    for flag, (value, positive) in times.items():
        if value is not None and not (math.isfinite(value) and value >= 0 and (value > 0 or not positive)):
            faults.add(SpecInvalid(f"{flag} is {value} seconds", fix="Give it a time such as 90s, 15m or 2h."))
    faults.raise_all("The spec")
    if stop.time_limit_s is not None and stop.notice_s() >= stop.time_limit_s:
        raise SpecInvalid(
            f"--time-limit-notice is {stop.notice_s():g} seconds, and --time-limit {stop.time_limit_s:g}",
            why="Ranks would be told to stop before they have done anything",
            fix="Give the notice less time than the limit.",
        )


def _check_environment(spec: RunSpec) -> None:
    environment = spec.environment
    for name in environment.env:
        check_variable(name, "`--env`")
    for name, value in {**spec.inherited_env, **environment.env}.items():
        if not name or "=" in name:
            raise SpecInvalid(f"`{name}` is no name of a variable", why="A name is not empty and holds no `=`")
        _check_string(f"the variable `{name}`", name + value, f"{name}={value}")
    if environment.secrets:
        raise SpecInvalid(
            f"The secret `{environment.secrets[0]}` cannot be injected",
            why="This version of Gangline keeps no secrets yet",
            fix="Leave --secret out; pass what is not secret by --env.",
        )
    for module in environment.preload:
        if not all(part.isidentifier() for part in module.split(".")):
            raise SpecInvalid(f"--preload names `{module}`, which is no name of a module")


def _check_folders(spec: RunSpec) -> None:
    workdir = "." if spec.snapshot is None else spec.snapshot.workdir
    if workdir.startswith("/") or ".." in workdir.split("/"):
        raise SpecInvalid(f"The working folder `{workdir}` lies outside the packed tree")
    path = spec.checkpoint.path
    if path is not None:
        _check_checkpoints(path)
    if spec.checkpoint.resume is ResumeMode.REQUIRED and path is None:
        raise SpecInvalid(
            "--resume required needs a --checkpoint-path",
            why="The default folder belongs to the run itself, and a new run has saved nothing",
            fix="Name the folder that holds the checkpoint.",
        )


def _check_checkpoints(path: str) -> None:
    _refuse_object_store(path)
    if "\0" in path or not path.startswith("/"):
        raise SpecInvalid(
            f"The checkpoint path `{path}` is not absolute",
            why="The server does not know what it is relative to",
            fix="Give an absolute folder; only `gangline submit` can resolve a relative one.",
        )


def _refuse_object_store(path: str) -> None:
    if _URL.match(path):
        raise SpecInvalid(
            f"The checkpoint path `{path}` is a URL, and object stores are not supported yet",
            why="Checkpoints are written to folders",
            fix="Give a folder that every node reaches, such as one of a mounted bucket or a shared file system.",
        )


def _missing_module(module: str, workdir: str, paths: Collection[str]) -> str | None:
    if not all(part.isidentifier() for part in module.split(".")):
        raise SpecInvalid(f"`{module}` is no name of a module", fix="Give -m a dotted name such as `package.train`.")
    stem = _inside(module.replace(".", "/"), workdir)
    if f"{stem}.py" in paths or f"{stem}/__main__.py" in paths:
        return None
    package = module.partition(".")[0]
    top = _inside(package, workdir)
    if f"{top}.py" in paths or any(path.startswith(f"{top}/") for path in paths):
        return f"The packed tree has `{package}`, but not the module `{module}` in it."
    return f"The packed tree has no module `{module}`; it has to be installed where the ranks run."


def _check_file(entry: str, workdir: str, paths: Collection[str]) -> None:
    if entry.startswith("/"):
        raise SpecInvalid(
            f"The entry `{entry}` is an absolute path",
            why="Ranks run the packed tree, not the folder that it was packed from",
            fix="Give the path relative to the folder that you submit from.",
        )
    wanted = _inside(entry, workdir)
    if wanted in paths or any(parent in paths for parent in _parents(wanted)):  # a link to a folder may lead anywhere
        return
    scripts = _scripts(paths, workdir)
    beside = [typed for typed in scripts if posixpath.dirname(_inside(typed, workdir)) == posixpath.dirname(wanted)]
    close = get_close_matches(entry, scripts[:_MOST_COMPARED], n=1, cutoff=0.6)
    fix = nearest(entry, close or (beside or scripts)[:_MOST_NAMED]) if scripts else "It holds no script at all."
    if any(path.startswith(f"{wanted}/") for path in paths):
        raise SpecInvalid(f"The entry `{entry}` is a folder", fix=fix)
    raise SpecInvalid(f"The packed tree has no `{entry}`", why=f"Looked for `{wanted}` from its root", fix=fix)


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _inside(path: str, workdir: str) -> str:
    return posixpath.normpath(posixpath.join(workdir, path))


def _scripts(paths: Collection[str], workdir: str) -> list[str]:
    """What somebody may have meant, as it would be typed in `workdir`."""
    found = sorted(path for path in paths if path.endswith((".py", ".ipynb", ".sh")))
    return [posixpath.relpath(path, workdir) for path in found]
