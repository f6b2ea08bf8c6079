"""What git knows of a working tree: where it stands, what it ignores and by which rule.

Everything is asked of the `git` program itself, without taking its locks; `parse_` functions are pure.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GitFailed", "GitStatus", "fetch_diff", "fetch_remote", "fetch_rules", "fetch_status", "parse_status"]

MAX_DIFF_BYTES = 1 << 20
_MAX_RULES = 2_000
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")
_OVERRIDES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_CEILING_DIRECTORIES",
)


class GitFailed(Exception):
    """Git is not installed, or refuses; the text is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitStatus:
    """One `git status`. Paths are relative to the top of the working tree; folders end in `/`."""

    commit: str | None
    """None before the first commit."""
    branch: str | None
    """None on a detached head."""
    dirty: bool
    """A tracked file differs from the commit, staged or not."""
    untracked: tuple[str, ...]
    ignored: frozenset[str]


def fetch_status(folder: Path, *, top: Path) -> GitStatus:
    """The status of everything below `folder`.

    Args:
        folder: where to look.
        top: the top of the working tree; git does not look for one above it.
    Raises:
        GitFailed: there is no git, or it does not answer for this folder.
    """
    flags = ("--porcelain=v2", "-z", "--branch", "--untracked-files=all", "--ignored=matching")
    return parse_status(_git(folder, "status", *flags, "--", ".", ceiling=top.parent))


def parse_status(raw: bytes) -> GitStatus:
    """Read `git status --porcelain=v2 -z --branch`."""
    commit = branch = None
    dirty = False
    untracked: list[str] = []
    ignored: list[str] = []
    fields = iter(os.fsdecode(raw).split("\0"))
    for line in fields:
        kind, _, rest = line.partition(" ")
        if kind == "#":
            commit = rest.removeprefix("branch.oid ") if rest.startswith("branch.oid ") else commit
            branch = rest.removeprefix("branch.head ") if rest.startswith("branch.head ") else branch
        elif kind == "?":
            untracked.append(rest)
        elif kind == "!":
            ignored.append(rest)
        elif kind in {"1", "2", "u"}:
            dirty = True
            if kind == "2":
                next(fields, None)  # a rename is followed by the old path
    return GitStatus(
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        dirty=dirty,
        untracked=tuple(untracked),
        ignored=frozenset(ignored),
    )


def fetch_rules(top: Path, paths: Sequence[str]) -> dict[str, str]:
    """Which rule ignores each path, as `.gitignore:3: *.log`; paths are relative to `top`.

    The first 2,000 are asked for; those without an answer are not in the result.
    """
    if not paths:
        return {}
    asked = b"".join(os.fsencode(path) + b"\0" for path in paths[:_MAX_RULES])
    try:
        raw = _git(top, "check-ignore", "--verbose", "-z", "--stdin", stdin=asked)
    except GitFailed:
        return {}
    fields = os.fsdecode(raw).split("\0")
    quads = zip(fields[0::4], fields[1::4], fields[2::4], fields[3::4], strict=False)
    return {path: f"{source}:{line}: {pattern}" for source, line, pattern, path in quads}


def fetch_remote(folder: Path) -> str | None:
    """The address of `origin`, or of the first remote, without credentials."""
    try:
        raw = _git(folder, "config", "--null", "--get-regexp", r"^remote\..*\.url$")
    except GitFailed:
        return None
    urls = dict(pair.split("\n", 1) for pair in raw.decode("utf-8", "replace").split("\0") if "\n" in pair)
    url = urls.get("remote.origin.url") or next(iter(urls.values()), None)
    return None if url is None else _CREDENTIALS.sub("", url)


def fetch_diff(folder: Path) -> str:
    """`git diff HEAD` of what is tracked below `folder`, at most 1 MiB of it."""
    flags = ("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=diff")
    command = _command(folder, "diff", *flags, "HEAD", "--", ".")
    with subprocess.Popen(
        command, env=_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as diff:
        if diff.stdout is None:
            return ""
        raw = diff.stdout.read(MAX_DIFF_BYTES + 1)
        if len(raw) > MAX_DIFF_BYTES:
            diff.kill()
    text = raw[:MAX_DIFF_BYTES].decode("utf-8", "replace")
    return text if len(raw) <= MAX_DIFF_BYTES else f"{text}\n[cut at 1 MiB]\n"


def _git(folder: Path, *args: str, stdin: bytes = b"", ceiling: Path | None = None) -> bytes:
    env = _env() if ceiling is None else {**_env(), "GIT_CEILING_DIRECTORIES": os.fspath(ceiling)}
    try:
        done = subprocess.run(_command(folder, *args), env=env, input=stdin, capture_output=True, check=False)
    except OSError as error:
        raise GitFailed(f"git cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GitFailed(said[0] if said else f"git {args[0]} ended with code {done.returncode}")
    return done.stdout


def _command(folder: Path, *args: str) -> list[str]:
    return ["git", "--no-optional-locks", "-c", "core.quotePath=false", "-C", os.fspath(folder), *args]


def _env() -> dict[str, str]:
    """The environment, without what a surrounding git (a hook) would redirect us by, and with messages in English."""
    kept = {key: value for key, value in os.environ.items() if key not in _OVERRIDES}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
