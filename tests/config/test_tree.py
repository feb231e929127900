"""Walks through nests."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

from robomimic_ddp.config import tree

Pair = namedtuple("Pair", "a b")


def test_a_copy_has_the_classes_and_the_order_of_the_nest():
    nest = {"b": [1, (2, None)], "a": OrderedDict(z=3, y={}), "c": Pair(4, [5])}
    made = tree.mapped(lambda value: value and 10 * value, nest)
    assert made == {"b": [10, (20, None)], "a": {"z": 30, "y": {}}, "c": Pair(40, [50])}
    assert list(made) == ["b", "a", "c"] and type(made["a"]) is OrderedDict
    assert type(made["c"]) is Pair and nest["b"] == [1, (2, None)]
    assert tree.mapped(str, 7) == "7"
    assert list(tree.leaves(nest)) == [1, 2, None, 3, 4, 5] and list(tree.leaves(7)) == [7]


def test_names():
    nest = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}]}
    assert dict(tree.named(nest)) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}]}
    assert next(tree.named(nest, "/")) == ("a/b", 1)
    assert not list(tree.named([1])) and not list(tree.named(None))
