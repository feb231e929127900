"""What names stand for by a file's imports alone: what LibCST's scopes say of the same file."""

from __future__ import annotations

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, ScopeProvider

from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Source, walk

HEAD = """import torch, torch.nn as nn, os.path
from torch.nn import DataParallel as DP, Module
from . import helper
from torch.utils.data import *
try:
    from a import twice
except ImportError:
    from b import twice
"""
BODIES = {
    "imports": "torch.nn.Linear(); nn.Linear(); DP(); Module(); os.path.join(); os.remove()",
    "nobody's": "DataLoader(); unknown.thing(); print(); open()",
    "relative": "helper(); helper.x()",
    "two imports": "twice()",
    "bound at top": "torch = 1\nlocal = 2\ntorch.nn.Linear(); local.x()",
    "bound in a function": "def f(x, nn):\n    y = x\n    nn.Linear(); x.a(); y.b()\nnn.Linear()",
    "a builtin bound in a function": "def f(open):\n    open()\ndef train():\n    open()",
    "an import in a function": "def f():\n    from torch.nn import Linear as L\n    L(); DP()",
    "global": "def f():\n    global made\n    made = 1\nmade.x()",
    "loops and handlers": "for nn in []:\n    nn.x()\ntry:\n    pass\nexcept E as DP:\n    DP()",
    "comprehensions": "[DP(x) for x in nn.y()]; {k: k.z() for k in torch.a()}",
    "lambda and walrus": "f = lambda nn: nn.Linear()\nif (Module := 1):\n    Module.x()",
    "classes": "class Module:\n    def nn(self):\n        return self.nn.x(), Module()",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_as_the_scopes_say(body):
    source = Source("utils/x.py", f"{HEAD}{body}\n".encode())
    scopes = MetadataWrapper(source.module, unsafe_skip_copy=True).resolve(ScopeProvider)
    functions = [call.func for call in walk(source.module, cst.Call)]
    assert functions
    for node in functions:
        scope = scopes.get(node)
        expected = {name.name for name in scope.get_qualified_names_for(node)} if scope else set()
        names = source.names(node)
        if names == {f"<locals>.{dotted(node)}"}:
            assert all("<locals>" in name and name.endswith(dotted(node)) for name in expected)
        else:
            assert names == (expected or {dotted(node)}), dotted(node)


def test_an_expression_that_is_no_name_stands_for_nothing():
    source = Source("utils/x.py", b"import torch\ntorch.device('x').type()\n")
    (outer,) = [call for call in walk(source.module, cst.Call) if not dotted(call.func)]
    assert source.names(outer.func) == frozenset()
    assert not source.resolves(outer.func, "torch.device.type")
