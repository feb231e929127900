"""The errors of ranks whose values are not as they must be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from robomimic_ddp.distributed import group
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.verify import comparison
from robomimic_ddp.verify.comparison import Different, Evidence, require_equal

DIFFERS = (
    "here: {} is not the same on all ranks; found {}, so rank(s) [{}] differ from the others. "
    "Expected equal bits: ranks that disagree train different models."
)
HINTS = {"": "no", "weights": "Load one file.", "weight": "no"}
PLAIN = Evidence("here", equal={"count": 1, "weights": (2, 3)}, hints=HINTS)


def error_of_rank(parts):
    """Collective: this rank's error or None. parts: each rank's Evidence, or what it calls."""
    part = parts[group.rank()]
    try:
        getattr(part, "require", part)()
    except VerifyError as error:
        return str(error)


@pytest.fixture
def errors(ranks):
    """`errors(*parts)`: what `error_of_rank` returns on as many ranks."""
    return lambda *parts: ranks.run(error_of_rank, parts, world_size=len(parts))


@pytest.mark.parametrize(
    "equal, hints, message",
    [
        ({"count": 1, "weights": (2, 3)}, {}, None),
        ({"count": 2, "weights": 0}, {"c": "Do."}, ("count", "rank 2: 2", " Do. no")),
        ({"count": 1, "weights": 0}, HINTS, ("weights", "rank 2: 0", " Load one file.")),
        ({"count": 1}, {}, ("weights", "rank 2: absent", " Load one file.")),
        (
            {"weights": (2, 3), "count": 1},
            HINTS,
            "here: ranks have the same items in another order.",
        ),
    ],
)
def test_the_first_item_that_is_not_equal_is_named(equal, hints, message, errors):
    if isinstance(message, tuple):
        name, last, hint = message
        value = {"count": "1", "weights": "checksum (2, 3)"}[name]
        values = f"rank 0: {value}; rank 1: {value}; {last}"
        message = DIFFERS.format(name, values, 2) + hint
    assert errors(PLAIN, PLAIN, Evidence("here", equal=equal, hints=hints)) == [message] * 3


def test_of_two_ranks_the_second_differs_and_long_values_are_cut(errors):
    parts = [Evidence("here", equal={"x": text * 91}) for text in "ab"]
    message = DIFFERS.format("x", f"rank 0: {'a' * 90}; rank 1: {'b' * 90}", 1)
    assert errors(*parts) == [message] * 2


@pytest.mark.parametrize(
    "values, shown",
    [
        ([1] * 15 + [2], "; ".join(f"rank {rank}: {1 + rank // 15}" for rank in range(16))),
        ([1] * 16 + [2], "16 rank(s), first rank 0: 1; 1 rank(s), first rank 16: 2"),
        (
            [0, 0, *range(1, 18)],
            "2 rank(s), first rank 0: 0; "
            + "; ".join(f"1 rank(s), first rank {value + 1}: {value}" for value in range(1, 16))
            + "; and 2 more values",
        ),
    ],
)
def test_of_many_ranks_each_value_is_shown_once(values, shown):
    assert comparison._shown(values) == shown


@pytest.mark.parametrize(
    "elsewhere, place",
    [
        (replace(PLAIN, when="there"), "there"),
        (partial(group.gather_objects, 0), "elsewhere in the job"),
    ],
)
def test_ranks_at_different_places(elsewhere, place, errors):
    first, second, _ = errors(PLAIN, PLAIN, elsewhere)
    assert first == second and first.startswith(
        "the ranks are at different places of the job: rank 0: here; rank 1: here; rank 2: "
        f"{place}; rank(s) [2] differ from the others. Every rank must take the same steps"
    )


def test_the_first_complaint_is_raised_with_the_ranks_that_have_it(errors):
    parts = [replace(PLAIN, complaints=complaints) for complaints in ([], ["a", "b"], ["c", "a"])]
    assert errors(*parts) == ["here, on rank(s) [1, 2]: a"] * 3


@pytest.mark.parametrize(
    "values, same",
    [([1, 2, 3], None), ([1, None, None], None), ([1, 2, 1], "0, 2"), ([None, 2, 2], "1, 2")],
)
def test_values_that_no_two_ranks_may_share(values, same, errors):
    unknown = Different("unknown", None, "")
    noise = [[Different("noise", value, "Seed it.")] if value else [] for value in values]
    parts = [Evidence("here", different=[*items, unknown]) for items in noise]
    message = f"here: noise: ranks [{same}] have the same; expected a different one on each rank."
    causes = [" Seed it." if value else "" for value in values]
    assert errors(*parts) == [same and message + cause for cause in causes]


def test_require_equal_names_the_cause(errors):
    first = partial(require_equal, "here", {"x": 1}, "Do.")
    second = partial(require_equal, "here", {"x": 2})
    assert errors(first, second) == [DIFFERS.format("x", "rank 0: 1; rank 1: 2", 1) + " Do."] * 2
