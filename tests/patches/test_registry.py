"""The fixers find themselves, and each has its test."""

from __future__ import annotations

import importlib

from robomimic_ddp.patches.registry import all_fixers, select
from tests.fixers.cases import DECORATED, EDITS, UNTOUCHED
from tests.patches.support import CHECKOUT


def test_every_fixer_is_in_a_table_of_tests_or_has_a_test_of_its_name():
    files = {path.stem[len("test_") :] for path in (CHECKOUT / "tests/fixers").glob("test_*.py")}
    alone = files - {"decorators", "table"}
    assert alone | set(DECORATED) | set(EDITS) == set(all_fixers())
    assert set(UNTOUCHED) | set(DECORATED) >= set(EDITS)


def test_every_file_of_fixers_is_found():
    found = set()
    for path in (CHECKOUT / "patches" / "fixers").glob("[!_]*.py"):
        module = importlib.import_module(f"robomimic_ddp.patches.fixers.{path.stem}")
        found |= set(getattr(module, "FIXERS", {path.stem}))
    assert set(all_fixers()) == found
    assert list(all_fixers()) == sorted(all_fixers())
    assert all(fixer.name == name for name, fixer in all_fixers().items())


def test_what_to_do_by_hand_is_always_said():
    assert all(fixer.by_hand and not fixer.by_hand.endswith(".") for fixer in all_fixers().values())


def test_a_seam_selects_all_its_fixers():
    rest = {fixer.name for fixer in select(without=["nets", "ask"])}
    usual = {name for name, fixer in all_fixers().items() if fixer.default}
    assert rest == usual - {"data_parallel", "nets_dict", "ask"}


def test_an_edit_that_changes_nets_is_off_by_default():
    names = {fixer.name for fixer in select()}
    assert {fixer.name for fixer in select(with_=["unet_config"])} - names == {"unet_config"}
    note = all_fixers()["unet_config"].note
    assert "checkpoints" in note and "hosts with this edit" in note
