"""What only shows with several ranks, under the real torchrun."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.bad_input.table import Place, contents
from tests.hosts import FINISHED, Host, Result, torchrun

pytestmark = [pytest.mark.bad_input, pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture
def place(tmp_path: Path, low_dim_dataset: Path) -> Place:
    (tmp_path / "case").mkdir()
    return Place(tmp_path / "case", low_dim_dataset.parent)


def train(host: Host, place: Place, *arguments: str) -> tuple[Result, str]:
    """The failed run on two ranks, and torchrun's root-cause block; files stayed as they were."""
    before = contents(place.folder)
    result = torchrun(host, "robomimic.scripts.train_rlds", *arguments)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert FINISHED not in result.stdout and not result.abort_texts(), result
    assert before.items() <= contents(place.folder).items()
    return result, result.stderr.partition("Root Cause")[2]


def test_no_number_in_the_data_of_one_rank(host_copy: Host, place: Place) -> None:
    def spoil(file) -> None:
        for name in ("demo_0", "demo_2"):
            file[f"data/{name}/obs/position"][...] = np.nan

    config = place.config(data=place.own_hdf5(spoil))
    result, cause = train(host_copy, place, f"load_from={config}")
    assert re.search(r"rank [01] of 2, epoch 1: the loss is nan", cause), result
    assert "obs/position" in cause and "demo_0, step 0" in cause and "data.hdf5" in cause, result


def test_what_all_ranks_find_is_said_once(host_copy: Host, place: Place) -> None:
    argument = "train.batch_size=30"
    words = ("43 samples", "a step needs 60 (2 ranks x 30)", "fewer ranks")
    result, cause = train(host_copy, place, f"load_from={place.config()}", argument)
    assert not [word for word in words if word not in cause], result
    assert result.stderr.count("\nerror: ") + result.stderr.startswith("error: ") == 1, result
    said = result.stderr.partition("Traceback")[0]
    assert not [word for word in words if word not in said], result
    agents_own = result.stderr.partition("Traceback")[2].partition("=====")[0]
    ours = result.stderr[result.stderr.index("error: ") :].replace(agents_own, "")
    # torchrun may end a rank on a busy machine before that waits for it, and lists it then.
    others = result.stderr.partition("Failures:")[2].partition("Root Cause")[0]
    if "exitcode  : -15" not in others:
        assert "<NO_OTHER_FAILURES>" in others and len(ours.splitlines()) <= 20, result
