"""The options of `gangline submit`: those of the run spec, made from its one schema, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gangline.cli.argv import SubmitLine, split_line
from gangline.cli.options import Invocation
from gangline.domain.errors import InvalidRequest
from gangline.wire.flags import SpecFlag, apply_flags, spec_flags

__all__ = [
    "ChangeCommand",
    "SubmitCommand",
    "changes_of",
    "flag_table",
    "make_spec_options",
    "rest_of",
    "spec_values",
    "submit_line",
]

_LINE_KEY = "gangline.submit_line"
_REST_KEY = "gangline.rest"
_PREFIX = "spec__"
_SECTIONS = {
    "": "This command",
    "run": "The run",
    "resources": "Machines",
    "environment": "Environment",
    "checkpoint": "Checkpoints",
    "restarts": "Restarts",
    "stop": "Time limits and stopping",
    "preflight": "Before the ranks start",
    "watch": "While ranks run",
    "logs": "Logs",
    "slurm": "Slurm",
}
"""Titles by the first part of a key's path, in the order of the help page."""


class SpecOption(click.Option):
    """An option that belongs to a key of the run spec."""

    def __init__(self, flag: SpecFlag) -> None:
        self.section = flag.path.partition(".")[0] if "." in flag.path else "run"
        kwargs: dict[str, Any] = (
            {"is_flag": True, "default": None} if flag.is_bool else {"type": str, "metavar": flag.metavar}
        )
        super().__init__(
            [_PREFIX + flag.path.replace(".", "__"), *flag.names],
            multiple=flag.multiple and not flag.is_bool,
            help=_help(flag),
            **kwargs,
        )


class SubmitCommand(click.Command):
    """Cuts the line where Gangline's options end before click sees it; lists the options in sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            line = split_line(args, flag_table(self))
        except InvalidRequest:
            if isinstance(ctx.obj, Invocation):
                ctx.obj.as_json = "--json" in args
            raise
        ctx.meta[_LINE_KEY] = line
        return super().parse_args(ctx, list(line.options))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return ["[OPTIONS] [train.py | -m module | notebook.ipynb | -- command] [ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_sections(self, ctx, formatter)


class ChangeCommand(click.Command):
    """A command about a run that takes options of the spec as what is to be other.

    What stands behind `--` is kept for `rest_of`; an option of `gangline submit` that this command does not have is
    explained.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_REST_KEY] = args[:cut], tuple(args[cut + 1 :])
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = next((flag for flag in spec_flags() if error.option_name in _spellings(flag)), None)
            if known is None:
                raise
            if isinstance(ctx.obj, Invocation):
                ctx.obj.as_json = "--json" in args
            raise InvalidRequest(
                f"`gangline {ctx.info_name}` cannot change `{error.option_name}`", fix=getattr(self, "advice", "")
            ) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_sections(self, ctx, formatter)


def make_spec_options(*, only_resumable: bool = False) -> list[click.Parameter]:
    """An option for every key of the spec that has a flag, without defaults where a run has them already.

    Args:
        only_resumable: those alone that `gangline resume` may change.
    """
    return [SpecOption(flag) for flag in spec_flags() if flag.resumable or not only_resumable]


def rest_of(ctx: click.Context) -> tuple[str, ...] | None:
    """What stood behind `--`; None: there was none."""
    return ctx.meta.get(_REST_KEY)


def changes_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of the spec said, as nested values under canonical keys."""
    return apply_flags({}, spec_values(params))


def flag_table(command: click.Command) -> dict[str, bool]:
    """Every spelling of every option of a command, and whether it takes a value."""
    found = {"-h": False, "--help": False}
    for param in command.params:
        if isinstance(param, click.Option):
            found.update(dict.fromkeys((*param.opts, *param.secondary_opts), not (param.is_flag or param.count)))
    return found


def spec_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """What the options said of the spec, by path; those that were not given are None or empty."""
    return {
        name.removeprefix(_PREFIX).replace("__", "."): value
        for name, value in params.items()
        if name.startswith(_PREFIX)
    }


def submit_line(ctx: click.Context) -> SubmitLine:
    """The line as it was cut."""
    line = ctx.meta[_LINE_KEY]
    assert isinstance(line, SubmitLine)  # noqa: S101 - set by `SubmitCommand.parse_args`
    return line


def _format_sections(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    rows: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            rows[getattr(param, "section", "")].append(record)
    for section, title in _SECTIONS.items():
        if rows[section]:
            with formatter.section(title):
                formatter.write_dl(rows[section])


def _spellings(flag: SpecFlag) -> set[str]:
    return {spelling for name in flag.names for spelling in name.split("/")}


def _help(flag: SpecFlag) -> str:
    repeat = " May be repeated." if flag.multiple else ""
    default = flag.default
    says_default = "default" in flag.help
    shown = not (default is None or default == "" or flag.multiple or flag.is_bool or says_default)
    text = f"{default:g}s" if flag.unit == "seconds" and default else f"{default}"
    if flag.unit == "bytes" and default:
        text = f"{default / 1e9:g}GB"
    return f"{flag.help}{repeat}" + (f"  [default: {text}]" if shown else "")
