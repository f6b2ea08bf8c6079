"""The page on signatures is the table that agents use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gangline.domain.signature_table import SIGNATURES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "signatures.md"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate_signatures", ROOT / "tools" / "generate_signatures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert PAGE.read_text(encoding="utf-8") == module.render_signatures(), "run: python tools/generate_signatures.py"


def test_every_row_is_on_it():
    page = PAGE.read_text(encoding="utf-8")
    assert [row.id for row in SIGNATURES if f"| `{row.id}` |" not in page] == []
