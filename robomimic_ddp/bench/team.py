"""The ranks of one variant of `bench step`, as processes of this machine that wait for a word."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from robomimic_ddp import env
from robomimic_ddp.bench import launched
from robomimic_ddp.bench.step import WORKER
from robomimic_ddp.errors import ConfigError

OURS, HOST = "ours", "host"


@dataclass(frozen=True)
class Job:
    """What a step is: `batch` low-dim samples on each of `ranks` ranks, through the host's
    diffusion policy with a net of `down_dims` channels (empty: the host's own); `cameras`
    pictures of `pixels` x `pixels` beside; `loads`: batches come from a DataLoader.
    """

    batch: int
    threads: int
    ranks: int
    down_dims: tuple = ()
    cameras: int = 0
    pixels: int = 128
    loads: bool = False


@dataclass(frozen=True)
class Variant:
    """`name` as in the rows; `options` of ours."""

    name: str
    options: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and options, for people."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


class Team:
    """The ranks of one variant, as processes that wait for a word.

    `cores`: the one that each rank is held to, or None. `host`: the folder of an edited host, in
    place of edits in memory.
    """

    def __init__(
        self,
        job: Job,
        variant: Variant,
        cores: Sequence[int] | None = None,
        host: str | None = None,
    ) -> None:
        self.variant, self.world = variant, 1 if variant.name == HOST else job.ranks
        self._stack, self._job, self._host = ExitStack(), job, host
        port = launched.free_port()
        self._members = [
            self._start(rank, port, cores[rank] if cores else None) for rank in range(self.world)
        ]
        try:
            self.told = self.ask(None)
        except ConfigError:
            self.close()
            raise

    def _start(self, rank: int, port: int, core: int | None) -> subprocess.Popen:
        name, job = self.variant.name, self._job
        words = {**asdict(job), "variant": name, "rank": rank, "world": self.world, "core": core}
        launcher = ["robomimic_ddp", "run"] if name == OURS and self._host is None else []
        added = {f"ROBOMIMIC_DDP_{key.upper()}": str(v) for key, v in self.variant.options.items()}
        added["OMP_NUM_THREADS"] = str(job.threads)
        if self.world > 1:
            added.update(launched.rank_variables(rank, self.world, port))
        errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        path = [self._host] if self._host else []
        started = subprocess.Popen(
            [sys.executable, "-m", *launcher, WORKER, json.dumps(words)],
            env={**env.child_environment(path), **launched.KEEPS_BYTECODE, **added},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        started.bench_errors = errors
        self._stack.callback(started.communicate)
        self._stack.callback(started.kill)
        return started

    def ask(self, word: str | None) -> list[dict]:
        """Each rank's answer to `word`; to None what it tells by itself."""
        for member in self._members:
            if word is not None:
                member.stdin.write(f"{word}\n")
                member.stdin.flush()
        return [self._answer(member) for member in self._members]

    def _answer(self, member: subprocess.Popen) -> dict:
        for line in member.stdout:
            if line.startswith("bench "):
                return json.loads(line[len("bench ") :])
        member.bench_errors.seek(0)
        text = member.bench_errors.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a rank of {self.variant.label} ended: {text[-1]}")

    def slowest(self, word: str = "step", what: str = "wall") -> float:
        """Seconds of a step."""
        return max(told[what] for told in self.ask(word))

    def close(self) -> None:
        """Ends the ranks."""
        self._stack.close()
