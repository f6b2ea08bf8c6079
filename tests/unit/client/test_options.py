from pathlib import Path

import pytest

from gangline.client.options import check_options, defaults_of, option_names, spec_from_options
from gangline.domain.errors import SpecInvalid
from gangline.wire.schema import keys


def make(tmp_path: Path, given=None, **options):
    defaults = defaults_of(tmp_path)
    return spec_from_options(options, entry="f.py", args=["a"], defaults=defaults, given=given or {}, where="@gang")


def test_every_key_that_people_may_set_has_a_name():
    named = [key for key in keys().values() if not key.filled_in and key.path[0] not in {"entry", "entry_kind", "args"}]
    assert len(option_names()) >= len(named)
    for name in ("nodes", "procs_per_node", "pool", "max_restarts", "hang_timeout_s", "strategy", "checkpoint_path"):
        assert name in option_names()


def test_numbers_are_in_the_unit_of_the_name_and_texts_say_theirs(tmp_path):
    assert make(tmp_path, hang_timeout_s=600).watch.hang_timeout_s == 600.0
    assert make(tmp_path, hang_timeout="10m").watch.hang_timeout_s == 600.0
    assert make(tmp_path, memory="2GB").resources.memory_bytes == 2_000_000_000


def test_options_stand_over_what_is_given_and_that_over_the_project(tmp_path):
    (tmp_path / "gangline.yaml").write_text("priority: 3\nresources:\n  nodes: 2\n")
    spec = make(tmp_path, given={"labels": {"a": "1"}, "priority": 4}, nodes=3, label="b=2")
    assert (spec.resources.nodes, spec.priority, dict(spec.labels)) == (3, 4, {"a": "1", "b": "2"})
    assert make(tmp_path).resources.nodes == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodez": 2}, "@gang has no option `nodez`. Did you mean `nodes`?"),
        ({"nodes": 0}, "whole number above 0"),
        ({"nodes": "many"}, "whole number above 0"),
        ({"strategy": "dpp"}, "Did you mean `ddp`?"),
        ({"hang_timeout_s": -1}, "hang"),
        ({"nodes": 2, "num_nodes": 3}, "twice"),
    ],
)
def test_a_wrong_one_is_named(options, says):
    with pytest.raises(SpecInvalid) as caught:
        check_options(options, where="@gang")
    assert says in str(caught.value)
