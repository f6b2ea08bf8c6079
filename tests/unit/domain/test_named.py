"""Wrong names in constructors of a spec get the project's own error."""

from dataclasses import replace

import pytest

from gangline.domain import spec
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import CheckpointPolicy, Resources, RunSpec, SnapshotRef

PARTS = [getattr(spec, name) for name in spec.__all__ if hasattr(getattr(spec, name), "__dataclass_fields__")]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RunSpec(entry="train.py", prioritty=2), r"RunSpec takes no `prioritty`\. Did you mean `priority`\?"),
        (lambda: Resources(nodez=2), r"Resources takes no `nodez`\. Did you mean `nodes`\?"),
        (
            lambda: RunSpec(entry="train.py", nodes=2),
            r"RunSpec takes no `nodes`\. Write resources=Resources\(nodes=…\)",
        ),
        (
            lambda: RunSpec(entry="a.py", nodez=2),
            r"RunSpec takes no `nodez`\. Did you mean resources=Resources\(nodes=…\)",
        ),
        (lambda: RunSpec(entry="train.py", xyzzy=2), r"RunSpec takes no `xyzzy`\. Valid: .*checkpoint.*"),
        (lambda: replace(CheckpointPolicy(), keep_lst=2), r"CheckpointPolicy takes no `keep_lst`.*`keep_last`"),
        (SnapshotRef, r"SnapshotRef needs `digest`"),
    ],
)
def test_a_wrong_name_is_said_with_the_nearest_valid_one(make, says):
    with pytest.raises(SpecInvalid, match=says):
        make()


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_a_spec_answers_with_a_bare_type_error(part):
    with pytest.raises(SpecInvalid, match=f"{part.__name__} takes no `no_such_name`"):
        part(no_such_name=1)


def test_what_is_wrong_otherwise_stays_what_it_is():
    with pytest.raises(TypeError, match="positional"):
        Resources(2)


def test_the_signature_is_that_of_the_class():
    assert Resources.__init__.__doc__ == Resources.__init__.__wrapped__.__doc__
    assert RunSpec(entry="a.py") == replace(RunSpec(entry="a.py"))
