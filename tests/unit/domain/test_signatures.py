from __future__ import annotations

import re
from string import Formatter

import pytest

from gangline.domain.errors import SpecInvalid
from gangline.domain.phase import BUDGET_OF, Reason
from gangline.domain.signature_table import SIGNATURES
from gangline.domain.signatures import OWN_REASONS, Evidence, Match, Signature, find_signature, parse_own

BY_TEXT = [row for row in SIGNATURES if row.patterns]
EXAMPLES = [(row.id, example) for row in BY_TEXT for example in row.examples]
FACTS = {"run": "llama-7k3q", "python": "/usr/bin/python3", "signal": "SIGTERM"}


def look_up(evidence: Evidence) -> Match:
    found = find_signature(evidence, SIGNATURES)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_each_example_is_found_by_its_own_row(name: str, example: Evidence) -> None:
    assert look_up(example).signature.id == name


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: row.id)
def test_each_row_is_whole(row: Signature) -> None:
    assert row.examples or not row.patterns
    assert row.hint[0].isupper()
    assert row.hint.endswith((".", "`"))
    assert not row.sentence.endswith(".")
    assert BUDGET_OF[row.reason] is not None
    groups = {
        name
        for one in row.patterns
        for text in (one.text, one.log, one.trace, one.child)
        if text
        for name in re.compile(text).groupindex
    }
    used = {name for text in (row.sentence, row.detail, row.hint) for _, name, _, _ in Formatter().parse(text) if name}
    assert used <= groups | FACTS.keys()


def test_names_are_unique() -> None:
    names = [row.id for row in SIGNATURES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(error_type="ValueError", message="CUDA out of memory"),
        Evidence(error_type="KeyError", message="'x'", log="MemoryError: earlier"),
        Evidence(error_type="requests.exceptions.HTTPError", message="401 Client Error: Unauthorized for url: /x"),
        Evidence(
            error_type="requests.exceptions.SSLError",
            message="Max retries exceeded with url: /x (Caused by SSLError(CERTIFICATE_VERIFY_FAILED))",
        ),
        Evidence(error_type="ValueError", message="inflate the values of the table"),
        Evidence(
            log="\n".join(["OSError: [Errno 28] No space left on device", *["training went on"] * 30]), exit_code=3
        ),
        Evidence(exit_code=1),
    ],
)
def test_what_only_sounds_alike_is_left_alone(evidence: Evidence) -> None:
    assert find_signature(evidence, SIGNATURES) is None


def test_the_exception_comes_before_what_it_came_from() -> None:
    full = ("OSError", "[Errno 28] No space left on device")
    wrapped = look_up(Evidence(error_type="RuntimeError", message="save failed", causes=[("KeyError", "x"), full]))
    assert (wrapped.signature.id, wrapped.error) == ("disk_full", full)
    own = look_up(Evidence(error_type="MemoryError", causes=[full]))
    assert (own.signature.id, own.error) == ("host_memory", None)


def test_numbers_are_repeated_where_all_are_known() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    total = " GPU 0 has a total capacity of 79.15 GiB of which 1.94 GiB is free."
    error_type = "torch.OutOfMemoryError"
    assert look_up(Evidence(error_type=error_type, message=text)).sentence() == "ran out of memory of its accelerator"
    whole = look_up(Evidence(error_type=error_type, message=text + total)).sentence()
    assert whole.endswith("(asked for 2.00 GiB where 1.94 GiB of 79.15 GiB were free)")


def test_hints_name_what_is_known() -> None:
    found = look_up(Evidence(error_type="ModuleNotFoundError", message="No module named 'flash_attn'"))
    assert found.sentence(FACTS) == "could not import `flash_attn`"
    assert "Install it for /usr/bin/python3" in found.hint(FACTS)
    assert "`gangline show llama-7k3q --full`" in found.hint(FACTS)
    assert "Install it for the python" in found.hint()


def test_a_spec_brings_signatures_of_its_own() -> None:
    own = parse_own({r"SHARD \d+ is missing": "storage: mount /data {again}", "gpu fault": "unhealthy_node: call ops"})
    found = find_signature(
        Evidence(error_type="KeyError", message="'x'", log="SHARD 17 is missing\nKeyError: 'x'"), [*own, *SIGNATURES]
    )
    assert found is not None
    assert (found.signature.id, found.signature.reason) == ("own_1", Reason.STORAGE)
    assert found.hint() == "mount /data {again}"
    in_message = find_signature(Evidence(error_type="MemoryError", message="gpu fault"), [*own, *SIGNATURES])
    assert in_message is not None
    assert in_message.signature.reason is Reason.UNHEALTHY_NODE


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"x": "nonsense: do it"}, "one of: user_error"),
        ({"x": "storage"}, "Write `reason: what to do`"),
        ({"x": "node_lost: no"}, "one of"),
        ({"(": "storage: y"}, "no regular expression"),
        ({".*": "storage: y"}, "found in an empty text"),
        ({"": "storage: y"}, "found in an empty text"),
        ({"y" * 2000: "storage: y"}, "too long"),
        ({f"x{n}": "storage: y" for n in range(101)}, "At most 100"),
    ],
)
def test_a_wrong_signature_is_refused(own: dict[str, str], words: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_own(own)
    assert words in " ".join(filter(None, (refused.value.what, refused.value.why, refused.value.fix)))
    assert Reason.PLATFORM not in OWN_REASONS
