"""octo's statistics are computed once, with a stand-in for octo; `test_host_pipeline` has data."""

from __future__ import annotations

import sys
from types import ModuleType
from unittest import mock

import pytest

from robomimic_ddp.data.rlds import octo_statistics
from robomimic_ddp.data.rlds.octo_statistics import computed_once
from robomimic_ddp.distributed import group

OCTO = """
computed = []
def get_dataset_statistics(builder, hash_dependencies=()):
    computed.append(builder)
    if not builder:
        raise ValueError("no builder")
    return f"{builder} {hash_dependencies}"
"""


def on_a_rank(folder):
    """On a rank: the statistics of the main rank's builder, and how often it has computed some."""
    copy, other, odd = (ModuleType(name) for name in ("copy_of_octo", "other", "odd"))
    exec(OCTO, vars(copy))
    other.get_dataset_statistics, odd.get_dataset_statistics = (lambda builder: builder), int
    before = copy.get_dataset_statistics
    untimed = mock.Mock(wraps=octo_statistics.main_rank.on_main_untimed)
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(sys.modules):
        patch.setattr(octo_statistics.main_rank, "on_main_untimed", untimed)
        patch.setattr(octo_statistics, "import_tensorflow", lambda: sys.path.insert(0, folder))
        patch.setattr(sys, "path", [*sys.path])
        for number, module in enumerate((copy, other, odd, None)):
            sys.modules[f"module_{number}"] = module
        with computed_once():
            octo = sys.modules["octo.data.dataset"]
            for module in (octo, copy):
                rank = str(group.rank())
                assert module.get_dataset_statistics(rank, hash_dependencies=1) == "0 1"
                with pytest.raises(ValueError, match="no builder"):
                    module.get_dataset_statistics("")
            assert other.get_dataset_statistics(rank) == rank
        assert copy.get_dataset_statistics is before
    assert all(call.args[0] is not None for call in untimed.call_args_list), "no time limit"
    return octo.computed, copy.computed


def test_the_main_rank_computes_for_all_in_octo_and_copies_of_it(ranks, tmp_path):
    for package in ("octo", "octo/data"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "octo/data/dataset.py").write_text(OCTO)
    assert ranks.run(on_a_rank, str(tmp_path)) == [(["0", ""], ["0", ""]), ([], [])]


def test_a_host_without_octo_needs_none(monkeypatch):
    monkeypatch.setattr(octo_statistics, "import_tensorflow", lambda: None)
    monkeypatch.setitem(sys.modules, "octo.data.dataset", None)
    with computed_once():
        pass
