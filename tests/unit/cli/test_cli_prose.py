"""Messages of programs, as people see them."""

from __future__ import annotations

import pytest

from gangline.cli.prose import fold_message, lay_out_message
from gangline.cli.text import cell_width

VALIDATION = """2 validation errors for Config
lr
  Input should be greater than 0 [type=greater_than, input_value=-1, input_type=int]
steps
  Field required"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one line", "one line"),
        ("one\n  two\r\nthree\n\n", "one two three"),
        ("\x1b[31mred\x1b[0m \x07bell\x00", "red bell"),
        ("\x1b]0;title\x07said", "said"),
        ("half \ud800", "half \\ud800"),
        ("name \u202egnp.exe", "name \\u202egnp.exe"),
    ],
)
def test_a_message_fits_on_one_line(text: str, shown: str):
    assert fold_message(text) == shown


def test_lines_of_a_message_stay_lines_and_keep_their_indentation():
    assert lay_out_message(VALIDATION, 60, most=8, lead="ValidationError") == [
        "ValidationError: 2 validation errors for Config",
        "  lr",
        "    Input should be greater than 0 [type=greater_than,",
        "    input_value=-1, input_type=int]",
        "  steps",
        "    Field required",
    ]


def test_what_is_indented_as_a_whole_is_not_indented_more():
    assert lay_out_message("bad shapes\n        a: 3\n        b: 4\n", 60, most=8) == ["bad shapes", "  a: 3", "  b: 4"]


@pytest.mark.parametrize("most", [1, 2, 7])
def test_a_long_message_is_cut_and_says_so(most: int):
    text = "\n".join(f"line {number}" for number in range(1_000))
    lines = lay_out_message(text, 40, most=most)
    assert len(lines) == most
    assert lines[-1] == f"  ({1_000 - most + 1:,} more lines)"


def test_a_message_without_any_space_is_bounded_too():
    lines = lay_out_message("x" * 4_000, 50, most=8)
    assert len(lines) == 1
    assert cell_width(lines[0]) <= 4 * 50


def test_lines_without_any_space_take_no_more_rows_than_others():
    lines = lay_out_message("\n".join(f"{number} {'y' * 300}" for number in range(50)), 50, most=8)
    assert sum(-(-cell_width(line) // 50) for line in lines) <= 8
    assert lines[-1] == "  (97 more lines)"


@pytest.mark.parametrize("text", ["", "\n \n", "\x1b[31m\x1b[0m"])
def test_without_a_message_its_lead_stands_alone(text: str):
    assert lay_out_message(text, 40, most=8, lead="KeyError") == ["KeyError"]


def test_control_codes_are_taken_out_of_every_line():
    text = "\x1b[1mbold\x1b[0m\nnext\x08\x07 \x1b[2Jline\rover"
    assert lay_out_message(text, 40, most=8) == ["bold", "  next line", "  over"]
