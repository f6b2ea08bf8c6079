"""What a run asks of Slurm: the pool's defaults and the run's own wishes as one, and what of it cannot be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from gangline.domain.errors import SpecInvalid
from gangline.domain.naming import printable
from gangline.domain.spec import SlurmOptions

__all__ = ["FLAGS", "check_options", "merge_for_script", "merge_options", "quote_value"]

FLAGS = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres", "dependency")
"""Fields that are options of sbatch by the same name."""

_OURS: Mapping[str, str] = {
    **dict.fromkeys(FLAGS, ""),
    **dict.fromkeys(
        (
            "job-name",
            "comment",
            "output",
            "error",
            "input",
            "open-mode",
            "chdir",
            "signal",
            "ntasks",
            "ntasks-per-node",
        ),
        "Gangline sets it, to find and to follow the job",
    ),
    **dict.fromkeys(
        ("requeue", "no-requeue", "no-kill", "kill-on-invalid-dep"), "Gangline alone restarts what it has started"
    ),
    **dict.fromkeys(("export", "export-file", "get-user-env"), "variables are given by --env, and prepared by --setup"),
    **dict.fromkeys(
        ("array", "wrap", "wait", "parsable", "test-only", "help", "usage", "version", "quiet", "verbose", "hetjob"),
        "a run is one job, and Gangline reads what sbatch says",
    ),
    **dict.fromkeys(("uid", "gid"), "jobs belong to the user of the pool"),
    **dict.fromkeys(("clusters", "cluster"), "a pool is one cluster: make another pool for it"),
    "nodes": "use --nodes",
    "cpus-per-task": "use --cpus-per-rank",
    "mem": "use --memory",
    "time": "use --time-limit",
    "exclusive": "use --exclusive",
    "gpus-per-node": "use --gpus-per-node",
    "gpus": "use --gpus-per-node",
    "gpus-per-task": "use --gpus-per-node",
    "ntasks-per-gpu": "use --procs-per-node",
}
_NAME = re.compile(r"[a-z][a-z0-9-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=+/@%\[\]*&|()!~^-]+")
"""Values that sbatch reads as they are."""
_MOST_CHARS = 4000


def merge_options(defaults: SlurmOptions, own: SlurmOptions) -> SlurmOptions:
    """The run's words before the pool's; set-up lines of the pool come first, then those of the run."""
    merged = {one.name: getattr(own, one.name) for one in fields(SlurmOptions)}
    for name, value in merged.items():
        if value is None or value == "":
            merged[name] = getattr(defaults, name)
    merged["setup"] = (*defaults.setup, *own.setup)
    merged["options"] = {**defaults.options, **own.options}
    return SlurmOptions(**merged)


def merge_for_script(defaults: SlurmOptions, own: SlurmOptions) -> SlurmOptions:
    """The same for an existing script: its own lines come before the pool's words, and it prepares its nodes itself."""
    named = own.directives.keys()
    kept = {one.name: getattr(defaults, one.name) for one in fields(SlurmOptions)}
    kept = {name: None if name in named else value for name, value in kept.items()}
    if not named.isdisjoint({"gres", "gpus", "gpus-per-node", "gpus-per-task"}):
        kept["gres"] = None
    kept["options"] = {name: value for name, value in defaults.options.items() if name not in named}
    kept["setup"] = ()
    return merge_options(SlurmOptions(**kept), own)


def check_options(options: SlurmOptions) -> None:
    """Refuse what sbatch must not be given.

    Raises:
        SpecInvalid: names the option, the value, and what to do.
    """
    for name, value in _named(options):
        _check_value(f"--{name}", value)
    for name, value in options.options.items():
        _check_name(name)
        if value:
            _check_value(f"--sbatch-option {name}", value)
    for name, value in options.directives.items():
        if not _NAME.fullmatch(name):
            raise SpecInvalid(f"The script asks for `--{printable(name)}`", why="sbatch has no option of such a name")
        if value:
            _check_value(f"--{name} of the script", value)
    for line in options.setup:
        if "\0" in line:
            raise SpecInvalid("A --setup line holds a NUL character", why="No shell can be given one")


def quote_value(value: str) -> str:
    """A value as sbatch reads it on a line of `#SBATCH`; it has passed `check_options`."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _named(options: SlurmOptions) -> Iterator[tuple[str, str]]:
    for name in FLAGS:
        value = getattr(options, name)
        if value is not None:
            yield name, value


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SpecInvalid(
            f"--sbatch-option names `{printable(name)}`",
            why="Options of sbatch have long names of small letters, digits and dashes",
            fix="Write NAME=VALUE as sbatch does after its two dashes, e.g. `--sbatch-option mail-type=END`.",
        )
    if name in _OURS:
        why = _OURS[name] or f"use --{name}"
        raise SpecInvalid(
            f"--sbatch-option cannot set `{name}`", why=why[0].upper() + why[1:], fix="Leave it out of --sbatch-option."
        )


def _check_value(what: str, value: str) -> None:
    if not value.strip():
        raise SpecInvalid(f"{what} is empty", fix="Give it a value, or leave it out.")
    if printable(value) != value or len(value) > _MOST_CHARS:
        raise SpecInvalid(
            f"{what} is `{printable(value)[:80]}`",
            why="It holds line breaks, control characters or far too much text",
            fix="Write it on one line, as sbatch takes it.",
        )
