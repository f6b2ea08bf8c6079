"""`gangline logs --search`: the lines of all ranks and attempts that match."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from gangline.cli.logtext import strip_controls
from gangline.cli.terminal import say
from gangline.cli.text import render_count, render_size
from gangline.wire.views import LogHit, SearchEnd

if TYPE_CHECKING:
    from gangline.cli.terminal import Terminal

__all__ = ["print_hits"]

_NOTHING = 1


def print_hits(
    items: Iterator[LogHit | SearchEnd],
    terminal: Terminal,
    label: Callable[[LogHit], str],
    *,
    context: int,
    as_json: bool,
) -> int:
    """Print hits as they come.

    Args:
        label: what the lines of a hit begin with.
        context: lines around each, where hits are kept apart.
        as_json: print the items, one object a line.
    Returns:
        0 where there was any, else 1, as grep does.
    """
    found = 0
    for item in items:
        if as_json:
            say(json.dumps(item))
            found += "text" in item
        elif "text" in item:
            hit = cast("LogHit", item)
            apart = [terminal.paint("--", dim=True)] if context and found else []
            say("\n".join([*apart, *_render(hit, label(hit), terminal)]))
            found += 1
        else:
            _say_end(item)
    return 0 if found else _NOTHING


def _render(hit: LogHit, label: str, terminal: Terminal) -> list[str]:
    def dim(lines: list[str]) -> list[str]:
        return [terminal.paint(f"{label}{_plain(line)}", dim=True) for line in lines]

    more = f" {terminal.mark} [the line goes on; --raw shows all of it]" if hit["cut"] else ""
    return [*dim(hit["before"]), f"{label}{_plain(hit['text'])}{more}", *dim(hit["after"])]


def _say_end(end: SearchEnd) -> None:
    if end["timed_out"]:
        say("the search took too long and was ended; name fewer ranks or a simpler expression", err=True)
    if end["more"]:
        say(f"these are the first {end['hits']:,}; there are more (--limit)", err=True)
    elif not end["hits"]:
        where = f"{render_size(end['bytes'])} in {render_count(end['logs'], 'log')}"
        say(f"no line matches; {where} were searched", err=True)


def _plain(line: str) -> str:
    text, held = strip_controls(line)
    return text if not held else text + strip_controls(held + "\x1b\\")[0]
