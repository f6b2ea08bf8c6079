"""Which files of a working tree belong to a snapshot.

One walk, whatever the project is kept in. Where git answers, it says what `.gitignore` means; elsewhere `.gitignore` is
read here. A folder with a `.git` of its own (a submodule, a worktree, a nested clone) is asked for itself.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gangline.domain.errors import SnapshotRefused
from gangline.snapshot.git import GitFailed, GitStatus, fetch_rules, fetch_status
from gangline.snapshot.ignore import (
    CHECKPOINTS,
    GANGLINEIGNORE,
    GITIGNORE,
    LOGS,
    REPORTS,
    IgnoreFiles,
    Include,
    built_in_rule,
    checkpoint_names,
    is_report,
    log_names,
)
from gangline.snapshot.links import decide_link
from gangline.snapshot.manifest import FOLDER_MODE, Excluded, Kind, printable
from gangline.snapshot.root import find_git_top
from gangline.snapshot.tally import LeftOut, count_folder, summarise

__all__ = ["Found", "Selection", "select"]

_GIT_RULE = "ignored by git"
_COUNT_BUDGET = 5_000
"""Things that are looked at to say how large an ignored folder is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One thing that belongs to the snapshot."""

    path: str
    where: str
    """Absolute path of the content."""
    kind: Kind
    stat: os.stat_result
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What belongs to a snapshot, and what was left out."""

    found: tuple[Found, ...]
    excluded: tuple[Excluded, ...]
    git: GitStatus | None
    """Of the repository that the root lies in; None: git does not answer for it."""
    untracked: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    path: str
    rule: str | None = None
    """What left the folder out; only what is included by name is taken from it."""
    by_git: bool = False
    made: Mapping[str, str] = field(default_factory=dict)
    """Names in it that Gangline has made, and the rule's words for them."""


def select(root: Path, *, include: Include, home: Path, max_files: int) -> Selection:
    """Walk a working tree.

    Args:
        root: absolute and without links in it.
        include: patterns that win over every rule.
        home: the state folder of Gangline, which is never packed.
        max_files: the walk ends with an error after that many.
    Raises:
        SnapshotRefused: a folder cannot be read, or there are too many files.
    """
    return _Walk(root=os.fspath(root), include=include, home=os.path.realpath(home), max_files=max_files).run()


@dataclass(slots=True, kw_only=True)
class _Walk:
    root: str
    include: Include
    home: str
    max_files: int
    own: IgnoreFiles = field(default_factory=lambda: IgnoreFiles(GANGLINEIGNORE))
    gitignore: IgnoreFiles = field(default_factory=lambda: IgnoreFiles(GITIGNORE))
    ignored: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """What git ignores: path in the tree to the top of its repository and the path in it."""
    untracked: list[str] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    folders: dict[str, os.stat_result] = field(default_factory=dict)
    """Those that are kept also where nothing is in them."""
    passed: dict[str, os.stat_result] = field(default_factory=dict)
    """Those that are kept only for what is taken from them."""
    left_out: list[LeftOut] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    todo: list[_Folder] = field(default_factory=list)
    budget: int = _COUNT_BUDGET

    def run(self) -> Selection:
        top = find_git_top(Path(self.root))
        status = self._ask_git("", top) if top is not None else None
        self.todo.append(_Folder(path="", by_git=status is not None))
        while self.todo:
            self._visit_or_refuse(self.todo.pop())
        self._add_folders()
        taken = {item.path for item in self.found}
        for pattern in self.include.unmatched(taken):
            self._miss(pattern)
        return Selection(
            found=tuple(self.found),
            excluded=summarise(self._with_git_rules()),
            git=status,
            untracked=tuple(path for path in self.untracked if path in taken),
            warnings=tuple(self.warnings),
        )

    def _visit_or_refuse(self, folder: _Folder) -> None:
        try:
            self._visit(folder)
        except OSError as error:
            raise _unreadable(folder.path or ".", error) from error

    def _visit(self, folder: _Folder) -> None:
        where = posixpath.join(self.root, folder.path) if folder.path else self.root
        try:
            with os.scandir(where) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        names = {entry.name for entry in entries}
        if folder.path and ".git" in names and folder.rule is None:
            top = Path(where)
            folder = _Folder(path=folder.path, by_git=self._ask_git(folder.path, top) is not None)
        saved, logs = checkpoint_names(Path(where), names), log_names(names)
        if saved or logs:
            folder = replace(folder, made={**dict.fromkeys(logs, LOGS), **dict.fromkeys(saved, CHECKPOINTS)})
            self._keep_if_filled(folder.path)
        if GANGLINEIGNORE in names:
            self.own.load(folder.path, Path(where, GANGLINEIGNORE))
        if GITIGNORE in names and not folder.by_git:
            self.gitignore.load(folder.path, Path(where, GITIGNORE))
        for entry in entries:
            try:
                self._consider(folder, entry)
            except FileNotFoundError:  # noqa: PERF203 - removed meanwhile
                continue
            except OSError as error:
                raise _unreadable(f"{folder.path}/{entry.name}".lstrip("/"), error) from error

    def _consider(self, folder: _Folder, entry: os.DirEntry[str]) -> None:
        if entry.name == ".git":
            return
        path = f"{folder.path}/{entry.name}" if folder.path else entry.name
        is_dir = entry.is_dir(follow_symlinks=False)
        if is_dir and entry.path == self.home:
            self.left_out.append(LeftOut(path=f"{path}/", rule="the state folder of Gangline", num_files=None))
            return
        rule = folder.rule or self._rule(folder, path, entry, is_dir=is_dir)
        if rule is not None and not self.include.matches(path, is_dir=is_dir):
            self._leave_out(path, entry, rule, is_dir=is_dir)
            return
        status = entry.stat(follow_symlinks=False)
        if is_dir:
            self.folders[path] = status
            self.todo.append(_Folder(path=path, by_git=folder.by_git))
        else:
            self._take(path, entry, status)

    def _rule(self, folder: _Folder, path: str, entry: os.DirEntry[str], *, is_dir: bool) -> str | None:
        own = self.own.decide(path, is_dir=is_dir)
        if own is not None:
            return own if isinstance(own, str) else None
        built_in = folder.made.get(entry.name) or built_in_rule(entry.name)
        if built_in is None and is_dir and os.path.lexists(f"{entry.path}/pyvenv.cfg"):
            built_in = "built-in list: virtual environments"
        if built_in is not None:
            return built_in
        said = self.gitignore.decide(path, is_dir=is_dir) if not folder.by_git else path in self.ignored and _GIT_RULE
        if isinstance(said, str):
            return said
        return REPORTS if entry.is_file(follow_symlinks=False) and is_report(entry.path) else None

    def _leave_out(self, path: str, entry: os.DirEntry[str], rule: str, *, is_dir: bool) -> None:
        built_in = rule.startswith("built-in")
        if is_dir and self.include.may_lie_in(path, built_in=built_in):
            self.passed[path] = entry.stat(follow_symlinks=False)
            self.todo.append(_Folder(path=path, rule=rule))
        elif is_dir:
            counted = None if built_in else count_folder(Path(entry.path), self.budget)
            if counted is not None:
                self.budget -= counted[0]
            num_files, size_bytes = counted or (None, None)
            self.left_out.append(LeftOut(path=f"{path}/", rule=rule, num_files=num_files, size_bytes=size_bytes))
        else:
            size = entry.stat(follow_symlinks=False).st_size
            self.left_out.append(LeftOut(path=path, rule=rule, size_bytes=size))

    def _take(self, path: str, entry: os.DirEntry[str], status: os.stat_result) -> None:
        if len(self.found) >= self.max_files:
            raise SnapshotRefused(
                f"The project {self.root} has more than {self.max_files:,} files",
                fix="Submit from a smaller folder, or list what training does not need in .ganglineignore.",
            )
        if stat.S_ISREG(status.st_mode):
            self.found.append(Found(path=path, where=entry.path, kind="file", stat=status))
        elif stat.S_ISLNK(status.st_mode):
            self._take_link(path, entry, status)
        else:
            self.left_out.append(
                LeftOut(path=path, rule="neither file nor folder (socket, pipe or device)", size_bytes=0)
            )

    def _take_link(self, path: str, entry: os.DirEntry[str], status: os.stat_result) -> None:
        fate = decide_link(self.root, path)
        if fate.warning:
            self.warnings.append(f"{printable(path)}: {printable(fate.warning)}")
        if fate.copy is None:
            self.found.append(Found(path=path, where=entry.path, kind="link", stat=status, target=fate.target))
        else:
            self.found.append(Found(path=path, where=fate.copy, kind="file", stat=Path(fate.copy).stat()))

    def _keep_if_filled(self, path: str) -> None:
        if path in self.folders:
            self.passed[path] = self.folders.pop(path)

    def _add_folders(self) -> None:
        """Those that are empty, and those with a mode of their own."""
        parents: set[str] = set()
        for item in self.found:
            _add_parents(parents, item.path)
        for path in sorted(self.folders, key=lambda folder: -folder.count("/")):
            if path not in parents:
                self._add_folder(path, self.folders[path])
                _add_parents(parents, path)
        for path in sorted(parents):
            status = self.folders.get(path) or self.passed[path]
            if stat.S_IMODE(status.st_mode) & 0o777 != FOLDER_MODE:
                self._add_folder(path, status)

    def _add_folder(self, path: str, status: os.stat_result) -> None:
        self.found.append(Found(path=path, where=posixpath.join(self.root, path), kind="dir", stat=status))

    def _ask_git(self, path: str, top: Path) -> GitStatus | None:
        """Learn what git ignores below a folder of the tree; None: git does not answer for it."""
        folder = Path(self.root, path)
        try:
            status = fetch_status(folder, top=top)
        except GitFailed as error:
            self.warnings.append(
                f"{printable(path) or 'the project'}: git does not answer, so commit and diff are unknown ({error})"
            )
            return None
        prefix = posixpath.relpath(folder, top)
        prefix = "" if prefix == "." else f"{prefix}/"
        if any(prefix.startswith(item) for item in status.ignored):
            return None  # a scratch folder that the repository around it ignores is a project without git
        base = f"{path}/" if path else ""
        for item in status.ignored:
            inner = item.rstrip("/").removeprefix(prefix)
            self.ignored[base + inner] = (top, item)
        self.untracked += (base + item.removeprefix(prefix) for item in status.untracked if not item.endswith("/"))
        return status

    def _with_git_rules(self) -> Iterable[LeftOut]:
        """What was left out, with the words of git's own rules."""
        asked: dict[Path, list[str]] = {}
        for item in self.left_out:
            if item.rule == _GIT_RULE and item.path.rstrip("/") in self.ignored:
                top, inner = self.ignored[item.path.rstrip("/")]
                asked.setdefault(top, []).append(inner)
        rules = {top: fetch_rules(top, paths) for top, paths in asked.items()}
        for item in self.left_out:
            known = self.ignored.get(item.path.rstrip("/")) if item.rule == _GIT_RULE else None
            rule = item.rule if known is None else rules[known[0]].get(known[1], item.rule)
            yield replace(item, rule=rule)

    def _miss(self, pattern: str) -> None:
        if any(char in pattern for char in "*?["):
            self.warnings.append(f"--include {pattern} matches nothing")
            return
        raise SnapshotRefused(
            f"--include {pattern} names nothing in {self.root}",
            fix="Give a path relative to the project's root, or a pattern as in .gitignore.",
        )


def _add_parents(parents: set[str], path: str) -> None:
    parent = path.rpartition("/")[0]
    while parent and parent not in parents:
        parents.add(parent)
        parent = parent.rpartition("/")[0]


def _unreadable(path: str, error: OSError) -> SnapshotRefused:
    if error.errno == errno.ENAMETOOLONG:
        parts = path.split("/")
        return SnapshotRefused(
            f"In the folder {printable(parts[0])}/, a path of {len(parts)} names is longer than the system can handle",
            why=f"It has {len(os.fsencode(path)):,} bytes",
            fix="Remove it, or list it in .ganglineignore.",
        )
    return SnapshotRefused(
        f"{printable(path)} cannot be read",
        why=error.strerror or "",
        fix="Make it readable, or list it in .ganglineignore.",
    )
