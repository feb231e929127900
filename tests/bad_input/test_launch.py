"""What a launcher's variables can contradict, through the entry."""

from __future__ import annotations

import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, require_one_clear_error
from tests.processes import rank_variables

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]

RANKS = rank_variables(1, 4, LOCAL_WORLD_SIZE="2")


def launch(name: str, words: tuple[str, ...], entry: str = "train_rlds", **changes: str | None):
    """A sound config under RANKS with `changes` (None: not set)."""
    environ = {key: text for key, text in {**RANKS, **changes}.items() if text is not None}

    def make(place):
        config = place.config()
        return [f"load_from={config}" if entry == "train_rlds" else str(config)]

    return Case(f"launch: {name}", make, words, environ, entry)


ENVIRONMENT = (
    launch("WORLD_SIZE alone", ("but not RANK and LOCAL_RANK",), RANK=None, LOCAL_RANK=None),
    launch("no RANK", ("WORLD_SIZE and LOCAL_RANK but not RANK", "torchrun"), RANK=None),
    launch("no WORLD_SIZE", ("but not WORLD_SIZE", "torchrun"), WORLD_SIZE=None),
    launch("RANK beyond", ("RANK=4 does not fit WORLD_SIZE=4", "0 to 3"), RANK="4"),
    launch("RANK a word", ("RANK='one' is not a whole number",), RANK="one"),
    launch("RANK empty", ("RANK='' is not a whole number", "unset it"), RANK=""),
    launch("LOCAL_RANK beyond", ("LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2",), LOCAL_RANK="2"),
    launch("WORLD_SIZE 0", ("WORLD_SIZE=0 is not a number of ranks",), WORLD_SIZE="0"),
    launch(
        "more local ranks than ranks",
        ("LOCAL_WORLD_SIZE=8", "WORLD_SIZE=4"),
        LOCAL_WORLD_SIZE="8",
    ),
    launch("no address", ("MASTER_ADDR is not set", "cannot meet"), MASTER_ADDR=None),
    launch("no port", ("MASTER_PORT is not set", "cannot meet"), MASTER_PORT=""),
    launch(
        "neither address nor port",
        ("MASTER_ADDR and MASTER_PORT are not set", "cannot meet"),
        MASTER_ADDR=None,
        MASTER_PORT=None,
    ),
    launch("port too large", ("MASTER_PORT='70000'", "1 to 65535"), MASTER_PORT="70000"),
    launch("in the host's own entry", ("RANK='x' is not a whole number",), "train", RANK="x"),
)


@rows(*ENVIRONMENT)
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)
