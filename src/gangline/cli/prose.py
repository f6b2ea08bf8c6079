"""What programs say of themselves, for people: without control codes, on one line or on several that belong together.

Unlike a path or an argument, of which every character counts (`text.visible`), a message may hold line breaks and
colours that mean nothing here. Pure.
"""

from __future__ import annotations

from gangline.cli.logtext import strip_controls
from gangline.cli.text import cell_width, clip, render_count, visible, wrap

__all__ = ["fold_message", "lay_out_message"]

_MORE_INDENT = "  "
_MOST_INDENT = 12
_LONGEST_WORD = 4
"""In widths: a path may be longer than the page, and is worth more whole; nothing else is."""


def fold_message(text: str) -> str:
    """The message on one line, whatever it held."""
    return text if text.isascii() and text.isprintable() else " ".join(visible(_plain(text), multiline=True).split())


def lay_out_message(text: str, width: int, *, most: int, lead: str = "") -> list[str]:
    """The message in its own lines, the second and later ones indented, each wrapped.

    Args:
        most: rows of the terminal that are taken, unless the first line alone takes more; of what is over, the last one
            says how many lines it has.
        lead: what stands before the message, on its first line; with an empty message it stands alone.
    """
    first, *more = [line for line in visible(_plain(text), multiline=True).splitlines() if line.strip()] or [""]
    lines = _wrap(f"{lead}: {first.strip()}" if lead and first.strip() else lead or first.strip(), width, "")
    left = min((_indent_of(line) for line in more), default=0)
    for line in more:
        lines += _wrap(line.strip(), width, _MORE_INDENT + " " * min(_MOST_INDENT, _indent_of(line) - left))
    rows = [-(-cell_width(line) // max(1, width)) for line in lines]
    if len(lines) > 1 and sum(rows) > most:
        kept = max(min(1, most - 1), sum(sum(rows[: number + 1]) < most for number in range(len(lines))))
        lines[kept:] = [f"{_MORE_INDENT}({render_count(len(lines) - kept, 'more line')})"]
    return lines


def _plain(text: str) -> str:
    plain, _ = strip_controls(text.replace("\r\n", "\n").replace("\r", "\n"))
    return plain


def _wrap(text: str, width: int, indent: str) -> list[str]:
    room = max(1, width - cell_width(indent))
    return [indent + clip(line, _LONGEST_WORD * room) for line in wrap(text, room)]


def _indent_of(line: str) -> int:
    return cell_width(line.expandtabs(4)) - cell_width(line.expandtabs(4).lstrip())
