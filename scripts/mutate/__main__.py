"""Mutation tests of the modules that decide what is trained on; scripts/mutate.sh runs it.

`mutants` makes them. pytest collects the tests of GROUPS once;
then a process is forked for each mutant, takes over its code and runs the tests of its module until
one fails. Ranks are forked from that process, so they run the mutant too.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import multiprocessing
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from scripts.arguments import parse
from scripts.mutate.forked_reader import ForkedReader
from scripts.mutate.groups import GROUPS, LEFT_OUT
from scripts.mutate.mutants import CHECKOUT, Mutant, mutants_of
from scripts.mutate.take_over import functions_by_file, take_over

SURVIVORS = CHECKOUT / "scripts" / "surviving_mutants.txt"
EXAMPLES = 12
MOST_MEMORY = 8 << 30
"""Bytes of address space that a mutant may add."""


class Cost(NamedTuple):
    """Of a run of tests, in seconds: by the clock, and of the processor."""

    seconds: float
    processor: float


class Runner:
    """A pytest plugin that runs the tests once as they are, then against each mutant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.killed_by: collections.Counter = collections.Counter()
        self.is_complete = True
        self.has_data = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)  # a smaller example would be found for nobody
        settings.register_profile(
            "mutants", deadline=None, derandomize=True, max_examples=EXAMPLES, phases=phases
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        self.functions = functions_by_file()
        prepare()
        by_file = collections.defaultdict(list)
        for item in session.items:
            if not any(name in item.nodeid for name in LEFT_OUT):
                by_file[str(item.path.relative_to(CHECKOUT / "tests"))].append(item)
        listed, rows, survivors = read_survivors(), [], []
        for modules, tests in GROUPS.items():
            paths = [f"{name}.py" for name in modules.split() if self.is_wanted(name)]
            items = [item for name in tests.split() for item in by_file[f"{name}.py"]]
            mutants = {path: self.sample(mutants_of(path)) for path in paths}
            if any(mutants.values()):
                if "test_windows" in tests and not self.has_data:
                    # Writes the data, for which it asks TensorFlow: no forked process can.
                    first = by_file["rlds/reading/test_index.py"][0]
                    other = next(item for item in session.items if item is not first)
                    runtestprotocol(first, log=False, nextitem=other)
                    self.has_data = True
                rows += self.run_group(mutants, items, listed, survivors)
        report(rows, survivors, self.options.verbose)
        stale = set(listed) - {mutant.key for mutant, _ in survivors}
        partial = self.options.sample or self.options.module or self.options.line
        if stale and not partial:
            print(f"\n{SURVIVORS.name} lists what does not survive any more:")
            print("\n".join(sorted(stale)))
        total = sum_of(rows)
        self.is_complete = total is None or score(total) >= self.options.least
        return True

    def is_wanted(self, name: str) -> bool:
        return not self.options.module or any(part in name for part in self.options.module)

    def sample(self, mutants: list[Mutant]) -> list[Mutant]:
        if self.options.line:
            mutants = [one for one in mutants if self.options.line in one.key]
        count = self.options.sample
        if not count or count >= len(mutants):
            return mutants
        chosen = random.Random(self.options.seed).sample(range(len(mutants)), count)
        return [mutants[index] for index in sorted(chosen)]

    def run_group(self, mutants: dict, items: list, listed: dict, survivors: list) -> list[tuple]:
        cost, failed = self.in_fork(lambda: None, items, 600.0)
        print(f"{' '.join(mutants)}: {len(items)} tests take {cost.seconds:.1f} s", flush=True)
        if failed is not None:
            raise SystemExit(f"without a mutant fails: {failed}")
        rows = []
        for path, several in mutants.items():
            killed, known, begun = 0, 0, time.monotonic()
            own = self.functions[str(CHECKOUT / "robomimic_ddp" / path)]
            for mutant in several:
                items.sort(key=lambda item: -self.killed_by[item.nodeid])
                apply = functools.partial(take_over, mutant, own)
                _, failed = self.in_fork(apply, items, 5.0 + 3 * cost.processor)
                if failed is not None:
                    killed += 1
                    self.killed_by[failed] += 1
                    if self.options.verbose:
                        print(f"killed by {failed}: {mutant.key}")
                    continue
                reason = listed.get(mutant.key)
                known += reason is not None
                survivors.append((mutant, reason))
                if reason is None:
                    print(f"survived: line {mutant.number} of {mutant.key}", flush=True)
            took = time.monotonic() - begun
            rows.append((path, len(several), killed, len(several) - killed - known, known, took))
            print(row_text(rows[-1]), flush=True)
        return rows

    def in_fork(self, apply: Callable, items: list, processor: float) -> tuple[Cost, str | None]:
        """(its cost, the test that failed or None) of a process that runs `apply`, then the tests;
        it may take `processor` seconds of processor time, and wait for longer.
        """
        sys.stdout.flush()
        begun, (reader, writer) = time.monotonic(), os.pipe()
        child = os.fork()
        if child == 0:
            run_child(apply, items, int(processor) + 1, writer)
        os.close(writer)
        process = os.pidfd_open(child)
        ended = select.select([process], [], [], 60 + 10 * processor)[0]
        try:
            os.killpg(child, signal.SIGKILL)  # its ranks as well
        except ProcessLookupError:
            pass
        _, status, used = os.wait4(child, 0)
        os.close(process)
        os.set_blocking(reader, False)
        try:
            answer = os.read(reader, 10_000).decode()
        except BlockingIOError:
            answer = ""
        os.close(reader)
        cost = Cost(time.monotonic() - begun, used.ru_utime + used.ru_stime)
        if not ended:
            return cost, "hanging"
        if answer == "passed":
            return cost, None
        return cost, answer or f"the end of the process ({status})"


def run_child(apply: Callable, items: list, processor: int, writer: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        apply()
        answer = "passed"
        for item, following in zip(items, [*items[1:], None]):
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(one.failed for one in reports):
                answer = item.nodeid
                break
    except BaseException as error:
        answer = f"an error outside of tests ({type(error).__name__})"
    os.write(writer, answer.encode())
    os._exit(0)


def prepare() -> None:
    """What all processes share."""
    import robomimic.utils.train_utils  # noqa: F401  (takes seconds)
    import torch

    from robomimic_ddp.data.rlds.loaders import remote

    remote.subprocess = SimpleNamespace(
        Popen=ForkedReader, DEVNULL=None, TimeoutExpired=TimeoutError
    )
    torch.set_num_threads(1)  # threads do not survive a fork
    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context(
        "fork" if method == "forkserver" else method
    )
    gc.collect()
    gc.freeze()


def read_survivors() -> dict[str, str]:
    """Mutant's key -> why no test can distinguish it from the original."""
    listed, key = {}, None
    for line in SURVIVORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("    "):
            listed[key] = line.strip()
        else:
            key = line
    return listed


def sum_of(rows: list[tuple]) -> tuple | None:
    return ("total", *(sum(row[at] for row in rows) for at in range(1, 6))) if rows else None


def score(row: tuple) -> float:
    """The killed share of mutants that can be distinguished from the original."""
    return row[2] / max(1, row[1] - row[4])


def row_text(row: tuple) -> str:
    name, mutants, killed, survived, known, seconds = row
    return (
        f"{name:28}{mutants:8}{killed:8}{survived:9}{known:8}{100 * score(row):8.1f} %"
        f"{seconds:8.0f} s"
    )


def report(rows: list[tuple], survivors: list, verbose: bool) -> None:
    print("\nNot mutated: type hints, docstrings, messages, texts for people (scripts/mutate).")
    print(f"{'module':28}{'mutants':>8}{'killed':>8}{'survived':>9}{'listed':>8}{'score':>10}")
    for row in [*rows, sum_of(rows)] if rows else ():
        print(row_text(row))
    if verbose:
        for mutant, reason in survivors:
            if reason is not None:
                print(f"listed: {mutant.key}\n    {reason}")


def main() -> int:
    options = parse("mutate")
    os.chdir(CHECKOUT)
    runner = Runner(options)
    wanted = [
        tests for modules, tests in GROUPS.items() if any(map(runner.is_wanted, modules.split()))
    ]
    files = dict.fromkeys(f"tests/{name}.py" for tests in wanted for name in tests.split())
    arguments = ["-qq", "-s", "-p", "no:cacheprovider", "-o", "addopts="]
    code = pytest.main([*arguments, *files], plugins=[runner])
    return int(code) or int(not runner.is_complete)


if __name__ == "__main__":
    sys.exit(main())
