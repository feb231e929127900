"""What every environment of the host must say of itself, for those that only rollouts use."""

from __future__ import annotations

from typing import Any

import robomimic.envs.env_base as EnvBases


class MinimalEnv(EnvBases.EnvBase):
    """A subclass has `reset`, `step`, `is_success`, `render` and what else its host calls."""

    def __new__(cls, *_: Any, **__: Any) -> MinimalEnv:
        cls.__abstractmethods__ = frozenset()  # the interface has methods that no rollout calls
        return super().__new__(cls)

    def __init__(self, env_name: str) -> None:
        self.env_name = env_name

    @property
    def name(self) -> str:
        return self.env_name

    @property
    def type(self) -> int:
        return EnvBases.EnvType.GYM_TYPE

    @property
    def version(self) -> str:
        return "1"

    @property
    def rollout_exceptions(self) -> tuple:
        return ()

    @property
    def base_env(self) -> MinimalEnv:
        return self
