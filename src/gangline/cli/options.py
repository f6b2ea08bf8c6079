"""Arguments and options that several commands share, and the handle on the current invocation.

Imports click alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from gangline.cli.terminal import say
from gangline.domain.errors import InvalidRequest, nearest

__all__ = ["Invocation", "OneOf", "Ranks", "Whole", "echo_json", "echo_lines", "json_option", "run_argument"]

_MOST_RANKS = 1_000_000
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True, kw_only=True)
class Invocation:
    """What `main` has to know of the command line after an error: whether it was to speak JSON."""

    as_json: bool = False


class Whole(click.ParamType[int]):
    """A whole number within limits.

    Args:
        least: the smallest that is allowed.
        most: the largest; None: any.
    """

    name = "N"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            number = None
        if number is None or number < self.least or (self.most is not None and number > self.most):
            limits = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
            self.fail(f"`{value}` is not a whole number, {limits}.", param, ctx)
        return number


class Ranks(click.ParamType[tuple[int, ...]]):
    """Numbers of ranks: `3`, `0,3-5`."""

    name = "RANKS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            low, dash, high = part.strip().partition("-")
            if not (low.isdecimal() and (high.isdecimal() if dash else True)) or int(high or low) < int(low):
                self.fail(f"`{value}` names no ranks. Write numbers and ranges: 3, 0,3-5.", param, ctx)
            if int(high or low) - int(low) > _MOST_RANKS:
                self.fail(f"`{part.strip()}` are more ranks than any gang has.", param, ctx)
            found += range(int(low), int(high or low) + 1)
        return tuple(dict.fromkeys(found))


class OneOf(click.ParamType[str]):
    """One of some words; a slip gets the nearest one.

    Args:
        what: what the words are, as in "there is no phase `runing`".
    """

    name = "WORD"

    def __init__(self, what: str, words: Sequence[str]) -> None:
        self.what, self.words = what, tuple(words)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        if value not in self.words:
            raise InvalidRequest(f"There is no {self.what} `{value}`", fix=nearest(str(value), self.words))
        return str(value)


def json_option(help_text: str = "Print JSON for scripts; errors are JSON on stderr.") -> Callable[[_F], _F]:
    """`--json`, which also turns errors into JSON."""
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help=help_text)


def run_argument(function: _F) -> _F:
    """`RUN`: an id, the beginning of one, or `latest`."""
    return click.argument("run", metavar="RUN")(function)


def echo_json(value: object) -> None:
    """One JSON document on stdout, for people too: indented, not escaped where the terminal can show it."""
    import json  # noqa: PLC0415 - most commands print none

    say(json.dumps(value, indent=2))


def echo_lines(lines: list[str]) -> None:
    """Several lines on stdout in one write."""
    if lines:
        say("\n".join(lines))


def _remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    if value and isinstance(ctx.obj, Invocation):
        ctx.obj.as_json = True
    return value
