"""What `gangline submit` says: what was packed and queued, or what the backend would get.

Pure.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gangline.cli.describe import describe_code, next_commands, num_ranks
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, visible
from gangline.wire.views import RunDetail

__all__ = ["render_launch", "render_submitted"]

_LABEL = 8


def render_submitted(run: RunDetail, terminal: Terminal) -> list[str]:
    """The run's id, what was packed and what was left out by which rule, and what to do next."""
    gang = f"{render_count(run['nodes'], 'node')} x {render_count(run['procs_per_node'], 'rank')}"
    total = f" = {num_ranks(run)} ranks" if run["nodes"] > 1 else ""
    head = f"{terminal.heading(run['id'])} {run['phase']}: {gang}{total} in pool {visible(run['pool'])}"
    code = describe_code(run["code"]) if run["code"] else []
    commands = next_commands(run)
    width = max(len(command) for command, _ in commands)
    steps = [f"{command:<{width}}  {terminal.paint(text, dim=True)}" for command, text in commands]
    return [head, *_block("packed", code, terminal), *_block("next", steps, terminal)]


def render_launch(launch: Mapping[str, Any], terminal: Terminal) -> list[str]:
    """Exactly what the backend would be given: one command for each node, variables, files, and the rest as JSON."""
    commands = launch.get("commands", ())
    known = {"backend", "commands", "env", "files"}
    rest = {key: value for key, value in launch.items() if key not in known}
    lines = [f"backend {visible(str(launch.get('backend', '-')))}"]
    for node, command in enumerate(commands):
        lines.append(f"{terminal.heading(f'node {node}')}: {visible(shlex.join(command))}")
    for name, value in sorted(launch.get("env", {}).items()):
        lines.append(f"{terminal.heading('env')} {visible(name)}={visible(shlex.quote(value))}")
    for path, text in sorted(launch.get("files", {}).items()):
        lines += [f"{terminal.heading('file')} {visible(path)}", *_quote(text)]
    return [*lines, *json.dumps(rest, indent=2).split("\n")] if rest else lines


def _block(title: str, lines: Sequence[str], terminal: Terminal) -> list[str]:
    titles = [title, *[""] * len(lines)]
    return [f"{terminal.paint(f'{name:<{_LABEL}}', dim=True)}{line}" for name, line in zip(titles, lines, strict=False)]


def _quote(text: str) -> list[str]:
    return [f"  {line}" for line in visible(text, multiline=True).rstrip("\n").split("\n")]
