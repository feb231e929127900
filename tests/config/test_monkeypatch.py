"""What is replaced for a block is put back after it, where it was."""

from __future__ import annotations

import pytest
import torch

from robomimic_ddp.config.monkeypatch import swapped


class Owner:
    on_class = "class"

    def method(self):
        return "method"


@pytest.mark.parametrize("error", [None, ValueError])
def test_attributes_of_an_object_a_class_and_a_module_are_put_back(error):
    owner, module, before = Owner(), torch.nn.Linear(1, 1), Owner.__dict__["method"]
    owner.own = "own"
    try:
        with swapped(owner, "own", 1), swapped(owner, "on_class", 2):
            with swapped(Owner, "method", lambda self: 3), swapped(module, "forward", lambda x: 4):
                assert (owner.own, owner.on_class, owner.method()) == (1, 2, 3)
                assert module(torch.ones(1)) == 4
                if error is not None:
                    raise error
    except ValueError:
        pass
    assert vars(owner) == {"own": "own"} and owner.on_class == "class"
    assert Owner.__dict__["method"] is before and "forward" not in vars(module)
