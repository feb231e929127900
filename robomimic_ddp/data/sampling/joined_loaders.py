"""Several train loaders whose batches a host joins to one."""

from __future__ import annotations

from typing import Any


class Together:
    """What a run knows of its train loaders: the first's answers, and the place of each.

    The host iterates the loaders themselves.
    """

    def __init__(self, before: Any, loader: Any) -> None:
        """`loader` beside `before`, which is a loader or a `Together`."""
        self.loaders = [*getattr(before, "loaders", [before]), loader]

    def __getattr__(self, name: str) -> Any:
        if name == "loaders":  # not made yet
            raise AttributeError(name)
        return getattr(self.loaders[0], name)

    def __len__(self) -> int:
        return len(self.loaders[0])

    def let_go(self) -> None:
        """Of each loader that has it; see `ShardedLoader.let_go`."""
        for loader in self.loaders:
            getattr(loader, "let_go", lambda: None)()

    def position(self) -> dict[str, Any]:
        """The first loader's, with those of the others."""
        first, *others = [loader.position() for loader in self.loaders]
        return {**first, "others": others}

    def go_to(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Each loader to its place; a place that a state lacks is a new pass."""
        places = [position, *(position or {}).get("others", [])]
        places += [None] * (len(self.loaders) - len(places))
        lines = [
            loader.go_to(place, world_size, epoch) for loader, place in zip(self.loaders, places)
        ]
        return "\n".join(lines)
