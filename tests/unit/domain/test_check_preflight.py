"""Checks of nodes as people ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.domain.check import check_spec, complete_spec
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import PreflightPolicy
from gangline.testing import make_capacity, make_spec


def asked(*checks: str, **more: Any) -> Any:
    return make_spec(preflight=PreflightPolicy(checks=checks, **more))


def test_commas_part_names_and_the_order_is_fixed():
    spec = complete_spec(asked("allreduce, disk", "disk"), make_capacity())
    assert spec.preflight.checks == ("disk", "allreduce")
    check_spec(spec)


def test_an_unknown_check_is_named():
    with pytest.raises(SpecInvalid, match="There is no check `dist`") as raised:
        check_spec(asked("dist"))
    assert "disk" in str(raised.value.fix)


def test_a_floor_without_its_check_is_refused():
    with pytest.raises(SpecInvalid, match="nothing to measure"):
        check_spec(asked("disk", min_bandwidth_bytes=1))
