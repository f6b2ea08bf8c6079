"""What `gangline submit --dry-run` says: what would run, and what the backend would get. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gangline.cli.describe import describe_code
from gangline.cli.submitted import block
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, visible
from gangline.domain.redact import Redactor, secret_values
from gangline.domain.spec import EntryKind, RunSpec

if TYPE_CHECKING:
    from gangline.wire.views import CodeView

__all__ = ["parse_files", "render_dry_run", "render_launch"]


def render_dry_run(
    spec: RunSpec, code: Mapping[str, Any], sources: Mapping[str, Sequence[str]], terminal: Terminal
) -> list[str]:
    """What would run, how, and from where each value comes; what would be packed and left out.

    Args:
        spec: complete, as it would be sent.
        code: as `CodeView`.
        sources: keys that each source sets, later ones winning; all other keys have their defaults.
    """
    ranks = spec.resources.procs_per_node or spec.resources.gpus_per_node or 1
    nodes = spec.resources.nodes
    gang = f"{render_count(nodes, 'node')} x {render_count(ranks, 'rank')}" + (
        f" = {nodes * ranks} ranks" if nodes > 1 else ""
    )
    words = [*(["-m"] if spec.entry_kind is EntryKind.MODULE else []), spec.entry, *spec.args]
    return [
        terminal.heading("Nothing was queued. This would run:"),
        *block("run", [visible(shlex.join(_without_secrets(words, spec.environment.env)))], terminal),
        *block("gang", [f"{gang} in pool {visible(spec.pool)}"], terminal),
        *block("python", [visible(spec.environment.python or f"that of pool {spec.pool}")], terminal),
        *block("packed", describe_code(cast("CodeView", code)), terminal),
        *block("set by", [f"{visible(name)}: {', '.join(keys)}" for name, keys in _winning(sources)], terminal),
    ]


def parse_files(launch: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend would get, with its JSON files as what they hold."""
    files = {
        path: json.loads(text) if path.endswith(".json") else text for path, text in launch.get("files", {}).items()
    }
    return {**launch, "files": files}


def render_launch(launch: Mapping[str, Any], terminal: Terminal) -> list[str]:
    """What the backend would be given, without secrets: a command for each node, variables, files, the rest as JSON."""
    launch = _mask(launch)
    commands = launch.get("commands", ())
    known = {"backend", "commands", "env", "files"}
    rest = {key: value for key, value in launch.items() if key not in known}
    lines = [f"backend {visible(str(launch.get('backend', '-')))}"]
    for node, command in enumerate(commands):
        lines.append(f"{terminal.heading(f'node {node}')}: {visible(shlex.join(command))}")
    for name, value in sorted(launch.get("env", {}).items()):
        lines.append(f"{terminal.heading('env')} {visible(name)}={visible(shlex.quote(value))}")
    for path, text in sorted(launch.get("files", {}).items()):
        shown = text if isinstance(text, str) else json.dumps(text, indent=2)
        lines += [f"{terminal.heading('file')} {visible(path)}", *_quote(shown)]
    return [*lines, *json.dumps(rest, indent=2).split("\n")] if rest else lines


def _mask(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same without what looks secret; `--json` has it."""
    files = [file["env"] for file in launch.get("files", {}).values() if isinstance(file, Mapping) and "env" in file]
    masked: Mapping[str, Any] = _without_secrets(launch, launch.get("env", {}), *files)
    return masked


def _without_secrets(value: Any, *environments: Mapping[str, str]) -> Any:  # noqa: ANN401 - as it comes
    return Redactor(secret_values(*environments)).value(value)


def _winning(sources: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Each source with the keys that no later one sets."""
    names = list(sources)
    later = {name: {key for after in names[i + 1 :] for key in sources[after]} for i, name in enumerate(names)}
    kept = [(name, [key for key in sources[name] if key not in later[name]]) for name in names]
    return [(name, keys) for name, keys in kept if keys]


def _quote(text: str) -> list[str]:
    return [f"  {line}" for line in visible(text, multiline=True).rstrip("\n").split("\n")]
