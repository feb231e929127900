"""What names stand for: the short way, which needs no scopes, agrees with LibCST."""

from __future__ import annotations

import builtins

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, ScopeProvider

from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.python import bindings, syntax_tree
from robomimic_ddp.patches.syntax.source import Source, walk
from tests.hosts import installed_package

HOSTILE = b"""
import os, os.path as p, torch.nn
import torch.nn.functional
from . import near
from ..utils import far as distant
from robomimic.utils import *
try:
    from diffusers import EMAModel
except ImportError:
    from diffusers.training_utils import EMAModel
if p:
    import numpy as np

open = None

def f(json, distant=1, *sys, **re):
    import json as inside, yaml
    torch.nn.DataParallel(p.join, os.path.join, near.x(), distant.y, inside.z, yaml.load)
    [np.zeros(np) for np in range(3)]
    return open(dict, super().g, EMAModel(undefined.x), json.load, re.compile)

class C:
    yaml = 3
    def open(self): return input(dict)
    def print(self, input, **print): ...
    def torch(self):
        return torch.nn.Linear(lambda os: os.path, near(torch=1))

try:
    json_too = (walrus := print(1))
except ValueError as error:
    global_name.x(error.x, walrus.y)
match json_too:
    case {"a": taken, **rest}: rest.x, taken.x
    case [first, *star] as whole: star.x, whole.x, first.x

with near as torch_too, distant: print(torch_too.x)
for distant.z in (): pass
"""


def texts() -> list[bytes]:
    paths = ("scripts/train.py", "utils/train_utils.py", "algo/cql.py", "utils/tensor_utils.py")
    return [HOSTILE, *((installed_package() / path).read_bytes() for path in paths)]


@pytest.mark.parametrize("data", texts(), ids=lambda data: str(len(data)))
def test_names_agree_with_libcsts_scopes(data):
    """But for names that are bound without an import, which are marked alike everywhere."""
    source = Source("x.py", data)
    scopes = MetadataWrapper(source.module, unsafe_skip_copy=True).resolve(ScopeProvider)
    imported, others = bindings(syntax_tree(data))
    compared = set()
    for node in walk(source.module, (cst.Name, cst.Attribute)):
        text, scope = dotted(node), scopes.get(node)
        root = text.partition(".")[0]
        if not text or scope is None:
            continue
        names = {name.name for name in scope.get_qualified_names_for(node)} or {text}
        if root in others and root not in imported and not hasattr(builtins, root):
            names = {f"<local>.{text}"}
        assert source.names(node) == names, text
        compared.add(text)
    assert len(compared) > 30


def test_names_of_the_hostile_file():
    source = Source("x.py", HOSTILE)
    found = {dotted(node): source.names(node) for node in walk(source.module, cst.Attribute)}
    assert found["torch.nn.Linear"] == {"torch.nn.Linear"}
    assert found["p.join"] == {"os.path.join"} and found["near.x"] == {".near.x"}
    assert found["inside.z"] == {"json.z"} and found["yaml.load"] == {"yaml.load"}
    assert found["distant.y"] == {"f.<locals>.distant.y"}, "a parameter"
    assert found["undefined.x"] == found["global_name.x"] - {"global_name.x"} | {"undefined.x"}
    for name in ("error.x", "walrus.y", "rest.x", "taken.x", "star.x", "whole.x", "torch_too.x"):
        assert found[name] == {f"<local>.{name}"}
    calls = {dotted(call.func): source.names(call.func) for call in source.calls(source.module)}
    assert calls["input"] == {"builtins.input"} and calls["super"] == {"builtins.super"}
    assert calls["print"] == {"builtins.print"} and calls["open"] == {"open"}, "bound at the top"
