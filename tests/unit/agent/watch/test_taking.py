from __future__ import annotations

import pytest

from gangline.agent.watch.taking import SourceLines, explain_spy

DENIED = """Error: Failed to get process executable name. Check that the process is running.

Caused by:
    0: Permission denied (os error 13)

Stack backtrace:
   0: <E as anyhow::context::ext::StdError>::ext_context
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (DENIED, "the kernel does not let this user look into the process (ptrace)"),
        ("Permission Denied: Try running again with elevated permissions", "ptrace"),
        ("Error: EPERM: Operation not permitted", "ptrace"),
        ("", "took longer than"),
        ("Error: No python process found\n\nStack backtrace:\n 0: x", "py-spy: Error: No python process found"),
    ],
)
def test_what_py_spy_says_is_put_into_words_that_help(said: str, words: str) -> None:
    told = explain_spy(said)
    assert words in told
    assert "anyhow" not in told
    assert len(told) <= 300


def test_lines_of_sources_that_are_not_there_are_empty(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.py").write_text("one\ntwo\n")
    lines = SourceLines()
    found = [lines.line(str(tmp_path / name), number) for name, number in (("a.py", 2), ("a.py", 9), ("b.py", 1))]
    assert found == ["two", "", ""]
