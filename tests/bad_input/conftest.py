"""Runs the selected rows of a file's table in one process with the edited host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from robomimic_ddp.config.host import early_checks
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import RobomimicDDPError
from tests.bad_input.table import Case, Outcome, Place, contents
from tests.hosts import Host, python


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest,
    host_copy: Host,
    low_dim_dataset: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Outcome]:
    """Name of a case -> how it ended, for every case of this file that was asked for."""
    cases = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "outcome" in item.fixturenames
    ]
    root = tmp_path_factory.mktemp("bad-input")
    shared = root / "shared"
    shared.mkdir()
    (shared / "low_dim.hdf5").write_bytes(low_dim_dataset.read_bytes())
    table = []
    for number, case in enumerate(cases):
        place = Place(root / f"case{number}", shared)
        place.folder.mkdir()
        table.append(
            {
                "arguments": [str(argument) for argument in case.make(place)],
                "environ": dict(case.environ),
                "entry": case.entry,
                "folder": str(place.folder),
                "shared": str(shared),
            }
        )
    (root / "cases.json").write_text(json.dumps(table))
    done = python(
        host_copy, "tests.bad_input.runner", root / "cases.json", root / "answers.json", timeout=500
    )
    assert done.returncode == 0 and not done.leftovers and not done.abort_texts(), done
    answers = json.loads((root / "answers.json").read_text())
    return {case.name: Outcome(**answer) for case, answer in zip(cases, answers)}


@pytest.fixture
def outcome(outcomes: dict[str, Outcome], case: Case) -> Outcome:
    """How the test's own case ended."""
    return outcomes[case.name]


@pytest.fixture
def refusal(case: Case, tmp_path: Path, low_dim_dataset: Path) -> str:
    """The error with which the dot-list of the case is refused in this process: before torch is
    imported, or before frames are read.
    """
    place = Place(tmp_path / "case", low_dim_dataset.parent)
    place.folder.mkdir()
    words = [str(word) for word in case.make(place)]
    before = contents(place.folder)
    with pytest.raises(RobomimicDDPError) as caught:
        config = early_checks.dot_list_config(words)
        is_rlds = config.train.get("data_format") == "droid_rlds"
        (dataset_configs if is_rlds else hdf5_validate.check)(config)
    assert contents(place.folder) == before
    return str(caught.value)


def rows(*cases: Case) -> Callable:
    """Parametrises a test over `cases`, under their names."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)
