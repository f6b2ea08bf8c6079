"""Write docs/reference/signatures.md from the table of signatures. `--check` only says whether the page is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gangline.domain.hints import HINTS
from gangline.domain.phase import BUDGET_OF
from gangline.domain.signature_children import CHILDREN
from gangline.domain.signature_code import IMPORTS, PROGRAMS, SCRIPT, STORAGE
from gangline.domain.signature_devices import DEVICES, MEMORY
from gangline.domain.signature_table import SIGNATURES
from gangline.domain.signature_talk import TALK
from gangline.domain.signatures import OWN_REASONS, Evidence, Signature

__all__ = ["render_signatures"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "signatures.md"
_HEAD = """# Signatures and hints

This page is made from the table that agents use, by `make docs`. When a rank fails, its exception, the end of its log and its exit code or
signal are compared with these rows, from the top; the first that fits gives the [reason](outcomes.md), the sentence and the hint that
`gangline show` prints. `gangline show RUN --json` has the row's id as `signature`. A failure that fits no row is a `user_error`.

Where a row is marked as a *consequence*, the rank says that it lost or missed another one: it is never blamed where another one failed.

## Rows of your own

`signatures` in a run file or in `gangline.yaml` are looked for before the table, in the exception's message and in the last lines of the log:

```yaml
script: train.py
signatures:
  'SHARD \\d+ is missing': 'storage: Mount /data again, then resume.'
  'NVSwitch fatal': 'unhealthy_node: Tell the cluster team which node it was.'
```

Each is a regular expression, a reason and what to do. The reason decides which budget pays for a restart; it is one of {own}.
"""
_PARTS: Sequence[tuple[str, Sequence[Signature]]] = (
    ("Processes that a rank has started", CHILDREN),
    ("Memory", MEMORY),
    ("Accelerators", DEVICES),
    ("Ranks and each other", TALK),
    ("Programs", PROGRAMS),
    ("Storage", STORAGE),
    ("Imports", IMPORTS),
    ("The script", SCRIPT),
)
_EXAMPLE_CHARS = 110
_WITHOUT = "Nodes, storage and the platform fail, too. Their message says what happened; the hint goes by the reason."


def main() -> int:
    """Write the page, or say that it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is not up to date")
    made = render_signatures()
    if not parser.parse_args().check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    sys.stderr.write(f"{PAGE} is stale: run python tools/{Path(__file__).name}\n")
    return 1


def render_signatures() -> str:
    """The whole page as Markdown."""
    listed = [row for _, rows in _PARTS for row in rows]
    rest = [row for row in SIGNATURES if row not in listed]
    lines = [_HEAD.format(own=", ".join(f"`{reason}`" for reason in OWN_REASONS))]
    for title, rows in (*_PARTS, ("Signals and exit codes", rest)):
        lines += [
            "",
            f"## {title}",
            "",
            "| id | reason | what it looks like | the rank … | what to do |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(row) for row in rows]
    lines += ["", "## Without a rank to blame", "", _WITHOUT, "", "| reason | what to do |", "|---|---|"]
    lines += [f"| `{reason}` | {_words(hint)} |" for reason, hint in HINTS.items()]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _row(row: Signature) -> str:
    reason = f"`{row.reason}` ({BUDGET_OF[row.reason]})"
    mark = "; *consequence*" if row.consequence else ""
    looks = "<br>".join(_examples(row)) or "found from how all ranks ended"
    cells = (f"`{row.id}`", reason + mark, looks, _words(row.sentence), _words(row.hint))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _examples(row: Signature) -> Iterator[str]:
    for example in row.examples:
        yield f"`{_example(example)}`"


def _example(example: Evidence) -> str:
    said = ": ".join(filter(None, (example.error_type, example.message))) or example.log.strip().rpartition("\n")[2]
    if not said:
        said = f"signal {example.signal}" if example.signal is not None else f"exit code {example.exit_code}"
    line = " ".join(said.split()).replace("`", "'")
    if example.child:
        line += f", of {example.child}"
    if example.trace:
        line += f", in {example.trace.split(chr(34))[1]}"
    if example.killed_for_memory:
        line += ", and the kernel counted a kill for memory"
    return line if len(line) <= _EXAMPLE_CHARS else f"{line[:_EXAMPLE_CHARS]}…"


def _words(text: str) -> str:
    known = {"{run}": "RUN", "{python}": "the run's interpreter"}
    for name, word in known.items():
        text = text.replace(name, word)
    return text.replace("`{", "`").replace("}`", "`").replace("{", "").replace("}", "")


if __name__ == "__main__":
    sys.exit(main())
