from __future__ import annotations

import inspect

import pytest

from gangline.control.commands import Commands
from gangline.testing.commands import FakeCommands

METHODS = [name for name, member in vars(FakeCommands).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("name", METHODS)
def test_the_fake_is_called_as_the_real_one(name):
    fake = inspect.signature(getattr(FakeCommands, name)).parameters
    real = inspect.signature(getattr(Commands, name)).parameters
    assert [(one.name, one.kind, one.default) for one in fake.values()] == [
        (one.name, one.kind, one.default) for one in real.values()
    ]


def test_nothing_that_routes_use_is_missing():
    public = {name for name, member in vars(Commands).items() if inspect.isfunction(member) and name[0] != "_"}
    assert public <= set(METHODS)
