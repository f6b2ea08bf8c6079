"""The root command: it knows the name of every command and imports only the one that runs.

Imports click alone, so that `gangline --help` is there at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import click

from gangline.domain.errors import InvalidRequest, nearest

__all__ = ["Entry", "LazyGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One command before it is imported."""

    module: str
    """Module that holds it under the name `command`."""
    section: str
    summary: str
    """Shown in the list of commands; a test keeps it equal to the command's own first line."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, listed in sections.

    Args:
        entries: every command by its name, in the order of the help page.
        synonyms: words that people try first, and the command that they mean.
    """

    def __init__(
        self, *args: object, entries: Mapping[str, Entry], synonyms: Mapping[str, str] | None = None, **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.entries = entries
        self.synonyms = synonyms or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = import_module(entry.module).command
        assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name gets the nearest one."""
        name = args[0] if args else ""
        if name and name not in self.entries and not name.startswith("-"):
            raise InvalidRequest(f"There is no command `{name}`", fix=self._hint(name, args[1:]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section, rows in self._sections():
            with formatter.section(section):
                formatter.write_dl(rows)

    def _sections(self) -> list[tuple[str, Sequence[tuple[str, str]]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.entries.items():
            found.setdefault(entry.section, []).append((name, entry.summary))
        return list(found.items())

    def _hint(self, name: str, rest: Sequence[str]) -> str:
        if name == "help" and rest and rest[0] in self.entries:
            return f"Did you mean `gangline {rest[0]} --help`?"
        meant = self.synonyms.get(name)
        if meant is not None:
            words = meant.split()
            if rest and not rest[0].startswith("-") and "latest" in words:
                words[words.index("latest")], rest = rest[0], rest[1:]
            meant = shlex.join([*words, *rest])
        if meant is None and name.endswith((".py", ".ipynb")):
            meant = f"submit {name}"
        return f"Did you mean `gangline {meant}`?" if meant else nearest(name, self.entries)
