"""Compares values of the ranks, by one message of a few bytes; by a second one if they differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from robomimic_ddp.distributed import group, watchdog
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.terminal import listed

_MOST_SHOWN = 16
"""Most values in a message."""


class Different(NamedTuple):
    """A value that no two ranks may share, and what it means if they do. None: unknown."""

    what: str
    value: Hashable
    cause: str


class _Summary(NamedTuple):
    when: str
    digest: bytes
    different: dict
    complaints: tuple


@dataclass
class Evidence:
    """One rank's part of a comparison at the place `when`. equal: name -> a value with a stable
    repr, the same on all ranks; the first that differs is reported, so causes come before effects.
    complaints: faults that this rank finds by itself. hints: prefix of a name (the longest counts)
    -> why such items may differ.
    """

    when: str
    equal: dict[str, Hashable] = field(default_factory=dict)
    different: list[Different] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    hints: dict[str, str] = field(default_factory=dict)

    def require(self) -> None:
        """Collective: raises VerifyError on all ranks: other places, or the first difference."""
        text = repr(list(self.equal.items())).encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()
        distinct = {item.what: item.value for item in self.different if item.value is not None}
        summary = _Summary(self.when, digest, distinct, tuple(self.complaints))
        summaries = group.gather_objects(summary)
        _require_one_place(summaries)
        _require_no_complaints(self.when, summaries)
        if len({summary.digest for summary in summaries}) > 1:
            self._name_the_difference()
        # A rank may lack one: nodes may have unequal numbers of GPUs.
        causes = {item.what: item.cause for item in self.different}
        for what in dict.fromkeys(what for summary in summaries for what in summary.different):
            values = [summary.different.get(what) for summary in summaries]
            _require_distinct(self.when, what, causes.get(what, ""), values)

    def _name_the_difference(self) -> None:
        """Collective: the second message, if digests differ."""
        parts = group.gather_objects((self.equal, self.hints))
        items = [rank_items for rank_items, _ in parts]
        for name in dict.fromkeys(name for rank_items in items for name in rank_items):
            values = [rank_items.get(name, "absent") for rank_items in items]
            if len(set(values)) > 1:
                odd = odd_ranks(values)
                # The cause is known best on a rank that differs.
                ordered = sorted(range(len(parts)), key=lambda rank: rank not in odd)
                hints = filter(None, dict.fromkeys(_hint(parts[rank][1], name) for rank in ordered))
                raise VerifyError(
                    f"{self.when}: {name} is not the same on all ranks; found {_shown(values)}, so "
                    f"rank(s) [{listed(odd)}] differ from the others. Expected equal bits: ranks "
                    f"that disagree train different models. {' '.join(hints)}".rstrip()
                )
        raise VerifyError(f"{self.when}: ranks have the same items in another order.")


def odd_ranks(values: list) -> list[int]:
    """Return the ranks that differ from the most frequent value (from rank 0's in a tie)."""
    usual = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != usual]


def require_equal(what: str, items: Mapping[str, Hashable], cause: str = "") -> None:
    """Collective: raises VerifyError on all ranks, with the first item that differs. items: name ->
    value with a stable repr; what, cause: start and end of the message.
    """
    Evidence(what, equal=dict(items), hints={"": cause}).require()


def _hint(hints: Mapping[str, str], name: str) -> str:
    fitting = [beginning for beginning in hints if name.startswith(beginning)]
    return hints[max(fitting, key=len)] if fitting else ""


def _require_one_place(summaries: list) -> None:
    places = [getattr(summary, "when", "elsewhere in the job") for summary in summaries]
    if len(set(places)) > 1:
        raise VerifyError(
            f"the ranks are at different places of the job: {_shown(places)}; rank(s) "
            f"[{listed(odd_ranks(places))}] differ from the others. Every rank must take the same "
            "steps: look for a condition on the rank, a net that was replaced or left in eval() on "
            "one rank, or data that end early there."
        )


def _require_no_complaints(when: str, summaries: list[_Summary]) -> None:
    by_rank = [summary.complaints for summary in summaries]
    complaint = next((text for complaints in by_rank for text in complaints), None)
    if complaint is not None:
        ranks = [rank for rank, complaints in enumerate(by_rank) if complaint in complaints]
        raise VerifyError(f"{when}, on rank(s) [{listed(ranks)}]: {complaint}")


def _require_distinct(when: str, what: str, cause: str, values: list) -> None:
    known = [value for value in values if value is not None]
    times = Counter(known)
    if len(times) < len(known):
        same = [rank for rank, value in enumerate(values) if times[value] > 1]
        raise VerifyError(
            f"{when}: {what}: ranks [{listed(same)}] have the same; expected a different one on "
            f"each rank. {cause}".rstrip()
        )


def _short(value: Any) -> str:
    """Return a value for a message. A tensor's digest is a tuple, and no weight."""
    return f"{'checksum ' * isinstance(value, tuple)}{value}"[:90]


def _shown(values: list) -> str:
    """Return each rank's value; for many ranks the first of each value, with their number."""
    if len(values) <= _MOST_SHOWN:
        return "; ".join(
            f"{watchdog.name(rank)}: {_short(value)}" for rank, value in enumerate(values)
        )
    counts = Counter(values).most_common()
    shown = [
        f"{times} rank(s), first {watchdog.name(values.index(value))}: {_short(value)}"
        for value, times in counts[:_MOST_SHOWN]
    ]
    unlisted = len(counts) - len(shown)
    return "; ".join(shown) + (f"; and {unlisted} more values" if unlisted else "")
