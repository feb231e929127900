"""Several train loaders whose batches the host joins into one."""

from __future__ import annotations

from typing import Any


class JoinedLoaders:
    """Behaves as the first loader, and saves and restores the position of each."""

    def __init__(self, before: Any, loader: Any) -> None:
        """Adds `loader` to `before`, which is a loader or a `JoinedLoaders`."""
        self.loaders = [*getattr(before, "loaders", [before]), loader]

    def __getattr__(self, name: str) -> Any:
        if name == "loaders":  # unpickling, or a failed constructor
            raise AttributeError(name)
        return getattr(self.loaders[0], name)

    def __len__(self) -> int:
        return len(self.loaders[0])

    def let_go(self) -> None:
        """Calls `let_go` of each loader that has it; see `ShardedLoader.let_go`."""
        for loader in self.loaders:
            getattr(loader, "let_go", lambda: None)()

    def position(self) -> dict[str, Any]:
        """The position of the first loader, with those of the others under "others"."""
        first, *others = [loader.position() for loader in self.loaders]
        return {**first, "others": others}

    def go_to(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Moves each loader to its position. One without a saved position starts a new pass."""
        places = [position, *(position or {}).get("others", [])]
        places += [None] * (len(self.loaders) - len(places))
        lines = [
            loader.go_to(place, world_size, epoch) for loader, place in zip(self.loaders, places)
        ]
        return "\n".join(lines)
