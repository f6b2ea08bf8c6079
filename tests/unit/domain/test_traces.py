from __future__ import annotations

from typing import Any

import pytest

from gangline.domain.traces import after_trace, find_error, find_place, fold_trace

PLAIN = """step 1
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 7, in main
    raise ValueError("bad data")
ValueError: bad data
"""


def test_the_place_of_a_traceback_is_the_users_own() -> None:
    assert find_place(PLAIN) == "train.py:7"
    library = '  File "/v/lib/python3.11/site-packages/torch/x.py", line 3, in f\n    g()\n'
    assert find_place(f'  File "C:\\\\code\\\\a.py", line 4, in main\n    x()\n{library}') == "a.py:4"
    assert find_place(library) == find_place("") == ""


def test_the_last_traceback_of_a_log() -> None:
    found = find_error(
        "Traceback (most recent call last):\n  File \"a\", line 1\nKeyError: 'old'\n" + PLAIN + "make: *** Error 1\n"
    )
    assert found is not None
    assert (found["type"], found["causes"]) == ("ValueError", [])
    assert found["message"].startswith("bad data")
    assert found["traceback"].startswith("Traceback")
    assert "KeyError" not in found["traceback"]


def test_what_pytorch_puts_before_each_line_is_taken_off() -> None:
    found = find_error("".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()))
    assert found is not None
    assert (found["type"], found["message"]) == ("ValueError", "bad data")
    assert "[rank3]" not in found["traceback"]


def test_a_chain_is_one_error_with_its_causes() -> None:
    text = (
        PLAIN
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + PLAIN.replace("ValueError: bad data", "RuntimeError: no batch\n")
    )
    found = find_error(text)
    assert found is not None
    assert (found["type"], found["message"]) == ("RuntimeError", "no batch")
    assert found["causes"] == [{"type": "ValueError", "message": "bad data"}]
    assert "direct cause" in found["traceback"]


def test_an_uncaught_exception_of_cpp() -> None:
    text = (
        PLAIN + "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [R 1] broke\nmore\n"
    )
    found = find_error(text)
    assert found is not None
    assert (found["type"], found["message"]) == ("c10::DistBackendError", "[R 1] broke\nmore")
    bare = find_error("terminate called after throwing an instance of 'std::bad_alloc'\n")
    assert bare is not None
    assert (bare["type"], bare["message"]) == ("std::bad_alloc", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 1\n",
        PLAIN + "training goes on\n" * 40,  # it was caught
        "Traceback (most recent call last):\n",
        'Traceback (most recent call last):\n  File "a"',
        "Traceback (most recent call last):\nhello there\n",
    ],
)
def test_where_there_is_none(text: str) -> None:
    assert find_error(text) is None


def test_only_what_ended_a_thread() -> None:
    assert find_error(PLAIN, only_thread=True) is None
    text = PLAIN.replace("step 1\n", "Exception in thread Thread-1 (work):\n")
    found = find_error(text, only_thread=True)
    assert found is not None
    assert found["type"] == "ValueError"


def frames(*files: str) -> str:
    lines = [f'  File "{file}", line 3, in f\n    call()\n    ^^^^^^' for file in files]
    return "\n".join(["Traceback (most recent call last):", *lines, "ValueError: x"])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.py", "/v/lib/python3.11/site-packages/torch/a.py", "/v/lib/python3.11/site-packages/torch/b.py"],
         ["train.py", "  (2 frames of torch)"]),
        (["<frozen runpy>", "train.py", "/usr/lib/python3/dist-packages/numpy/x.py", "/usr/lib/python3.11/json/d.py"],
         ["  (1 frame of runpy)", "train.py", "  (2 frames of numpy, json)"]),
    ],
)  # fmt: skip
def test_frames_of_libraries_are_folded(files: list[str], expected: list[Any]) -> None:
    shown = fold_trace(frames(*files))
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[-1] == "ValueError: x"
    middle = [line for line in shown[1:-1] if not line.startswith("    ")]
    assert [line if line.startswith("  (") else line.split('"')[1] for line in middle] == expected


def test_a_trace_of_nothing_but_libraries_stays_whole() -> None:
    text = frames("/v/lib/python3.11/site-packages/torch/a.py")
    assert fold_trace(text) == text.splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step 1\n", None),
        (PLAIN, ""),
        (PLAIN + "\nmake: *** [train] Error 1\n", ""),
        (PLAIN + "  indented: of the message\n", ""),
        (PLAIN + "recovered, going on\n", "recovered, going on\n"),
        (PLAIN + PLAIN + "recovered\nstep 2\n", "recovered\nstep 2\n"),
    ],
)
def test_what_a_program_printed_after_its_last_traceback(text: str, expected: str | None) -> None:
    assert after_trace(text) == expected


def test_lines_of_a_launcher_are_no_part_of_the_message() -> None:
    found = find_error(PLAIN + "E1130 22:02:09.136000 3284 torch/api.py:1002] failed (exitcode: 1)\n")
    assert found is not None
    assert found["message"] == "bad data"
