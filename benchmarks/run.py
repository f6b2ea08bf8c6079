"""Run the benches and write docs/benchmarks.md: `python benchmarks/run.py [NAME …]`.

Each bench measures Gangline and its peer in turns, in the same minutes on the same machine; the page holds medians and
ratios. With names, only those are measured again; the figures of the others are kept from `benchmarks/results.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import ROOT, describe_machine  # noqa: E402

BENCHES = (
    "submit_to_allreduce",
    "restart",
    "why",
    "hang",
    "launch_plain",
    "log_call",
    "step_overhead",
    "watching",
    "startup",
    "memory",
    "join",
    "chart",
    "follow_logs",
    "search_logs",
    "slurm",
    "pipeline",
    "slurm_live",
)
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="benches to run; default: all")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.names or BENCHES:
        began = time.monotonic()
        rows = [row.to_dict() for row in import_module(name).measure()]
        results[name] = {"machine": describe_machine(), "rows": rows}
        for row in rows:
            print("  ".join(cell for cell in render_cells(row) if cell), flush=True)
        print(f"({name}: {time.monotonic() - began:.0f} s)\n", flush=True)
    if not options.dry:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(render_page(results), encoding="utf-8")
    return 0


def render_page(results: dict[str, Any]) -> str:
    """The whole page."""
    ordered = [results[name] for name in BENCHES if name in results]
    machine = ordered[-1]["machine"]
    lines = [
        "# Benchmarks",
        "",
        "`make bench` writes this page. Ours and the peer's figures are medians of runs taken in turns, in the same",
        "minutes on the same machine; the ratio is what counts. Spread is our smallest and largest value.",
        "",
        f"Measured {machine['date']} on {machine['processor']}, {machine['cores']} cores, {machine['memory']},",
        f"{machine['system']}, Python {machine['python']}; {machine['versions']}.",
        "",
        "| what | ours | spread | peer | ratio | goal | met |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(render_cells(row))} |" for result in ordered for row in result["rows"]]
    return "\n".join(lines) + "\n"


def render_cells(row: dict[str, Any]) -> list[str]:
    """One row as seven texts."""
    unit, peer = row["unit"], row["peer"]
    ours = render_value(row["ours"], unit) + (f" ({row['note']})" if row["note"] else "")
    spread = " to ".join(render_value(value, unit) for value in row["spread"]) if row["spread"] else ""
    theirs = f"{render_value(peer, unit)} ({row['peer_is']})" if peer is not None else ""
    ratio = f"{row['ours'] / peer:.3f}" if peer else ""
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    return [row["what"], ours, spread, theirs, ratio, row["goal"], met]


def render_value(value: float, unit: str) -> str:
    """Three digits that matter, and the unit."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    text = f"{value:.0f}" if float(value).is_integer() and not unit else f"{value:.{digits}f}"
    return f"{text} {unit}".strip()


if __name__ == "__main__":
    sys.exit(main())
