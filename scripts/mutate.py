"""Mutation tests of the modules that decide what is trained on; scripts/mutate.sh runs it.

mutmut's operators, and four of ours, make the mutants. pytest collects the tests of GROUPS once;
then a process is forked for each mutant, takes over its code and runs the tests of its module until
one fails. Ranks are forked from that process, so they run the mutant too.

Not mutated: type hints, docstrings, imports, decorators, assertions, errors that are raised, what
is printed, texts with blanks, __repr__ and the functions of TEXTS.
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
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

from scripts.arguments import parse

CHECKOUT = Path(__file__).resolve().parent.parent
SURVIVORS = CHECKOUT / "scripts" / "surviving_mutants.txt"
GROUPS = {
    "data/sampling/pass_order data/sampling/sampler data/sampling/sharded_loader"
    " data/sampling/loaders": (
        "data/test_orders_never_change data/test_sampling data/test_sampling_positions"
        " data/test_iterable"
    ),
    "data/sampling/replay": "data/test_sampling_positions",
    "distributed/gradients/fsdp distributed/gradients/fsdp_units": "ranks/gradients/test_fsdp",
    "data/sampling/worker_options": "data/test_worker_options",
    "data/rlds/order/pass_schedule data/rlds/order/read_plan data/rlds/order/partition"
    " data/rlds/order/pass_order"
    " data/rlds/order/shuffle_plan": (
        "data/test_orders_never_change rlds/order/test_shuffle rlds/order/test_partition"
        " rlds/order/test_pass_schedule"
    ),
    "data/rlds/order/mixture_quota": "data/test_orders_never_change rlds/order/test_mixture_quota",
    "monitoring/metrics monitoring/step_logs": (
        "monitoring/test_metrics ranks/epochs/test_validation ranks/resuming/test_resumed_run"
        " ranks/epochs/test_metrics"
    ),
    "training/step/accumulation": (
        "training/step/test_accumulation ranks/gradients/test_accumulation"
    ),
    "training/step/ema": "training/step/test_ema",
    "distributed/gradients/torch_arguments": "distributed/test_torch_arguments",
    "training/state/state_saver training/state/resume": (
        "training/test_resume ranks/resuming/test_state_saver ranks/resuming/test_resumed_run "
        "ranks/resuming/test_epoch_is_a_pass ranks/resuming/test_resume_refusals"
    ),
    "checkpoint/capture checkpoint/restore": (
        "ranks/resuming/test_state_model ranks/resuming/test_state_saver"
    ),
}
"""Modules of robomimic_ddp, and the files of tests/ that are run against their mutants."""
LEFT_OUT = (
    "-rlds",  # TensorFlow in a rank takes seconds
    "test_no_diffusers_is_needed",
    "test_a_request_in_a_long_rollout",
    "test_a_thousand_ranks_and_back_are_cheap",
    "test_a_whole_droid_pass_is_planned",
    "test_weights_beyond_the_limit_of_torch",
    "test_every_kind_of_communication",
)
"""Tests that cost more than they would find here."""
TEXTS = {"__repr__", "describe_share", "_smaller_batch", "_not_called", "_other_model"}
"""Functions that make a text for people."""
SAYS = {"print", "say", "start.say", "_other_model", "warnings.warn"}
NEVER = {"len", "isinstance"}
HINTS = {"Callable", "Union"}
NOTHING = cst.parse_expression('__import__("contextlib").nullcontext()')
EXAMPLES = 12
MOST_MEMORY = 16 << 30


class Cost(NamedTuple):
    """Of a run of tests, in seconds: by the clock, and of the processor."""

    seconds: float
    processor: float


class Mutant(NamedTuple):
    """The module `path` (relative to the package) with `line` changed to `changed`."""

    path: str
    number: int
    line: str
    changed: str
    source: str

    @property
    def key(self) -> str:
        return f"{self.path}: {self.line} -> {self.changed}"


def drop_call(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """A call whose result nobody takes is left out."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def return_nothing(node: cst.Return) -> Iterator[cst.CSTNode]:
    """None in place of what is returned."""
    if node.value is not None and getattr(node.value, "value", "") not in ("None", "True", "False"):
        yield node.with_changes(value=cst.Name("None"))


def turn_condition(node: cst.If) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """The other branch is taken."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.test, cst.UnaryOperation(cst.Not(), test)


def drop_context(node: cst.WithItem) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """The block runs outside of its context manager."""
    yield node.item, NOTHING


OPERATORS = [
    *mutation_operators,
    (cst.Expr, drop_call),
    (cst.Return, return_nothing),
    (cst.If, turn_condition),
    (cst.WithItem, drop_context),
]


class Places(cst.CSTVisitor):
    """The nodes of a module that are mutated, in order."""

    def __init__(self) -> None:
        self.found: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if is_left_alone(node):
            return False
        self.found.append(node)
        return True


def is_left_alone(node: cst.CSTNode) -> bool:
    """Whether neither `node` nor what is in it is mutated."""
    if isinstance(node, cst.Lambda) and name_of(node.body) == "None":
        return True
    if isinstance(node, (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)):
        return True
    if isinstance(node, (cst.Raise, cst.Assert, cst.ConcatenatedString)):
        return True
    if isinstance(node, cst.FunctionDef):
        return node.name.value in TEXTS
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.SimpleString)
    if isinstance(node, cst.If):
        return name_of(node.test) == "TYPE_CHECKING"
    if isinstance(node, cst.Assign):
        is_hint = isinstance(node.value, cst.Subscript) and name_of(node.value.value) in HINTS
        return is_hint or name_of(node.targets[0].target) == "__all__"
    if isinstance(node, cst.Call):
        return name_of(node.func) in SAYS | NEVER
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        texts = (part for part in node.parts if isinstance(part, cst.FormattedStringText))
        return any(" " in part.value for part in texts)
    return False


def name_of(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{name_of(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def mutants_of(path: str) -> list[Mutant]:
    """All mutants of a module of the package, each once."""
    source = (CHECKOUT / "robomimic_ddp" / path).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    places, starts, found = Places(), [0], {}
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    wrapper.module.visit(places)
    for place in places.found:
        for node, new in changes_of(place):
            span = spans[node]
            begin = starts[span.start.line - 1] + span.start.column
            end = starts[span.end.line - 1] + span.end.column
            changed = source[:begin] + wrapper.module.code_for_node(new) + source[end:]
            if changed == source or changed in found or not compiles(changed):
                continue
            first = starts[source.count("\n", 0, begin)]
            last = source.find("\n", end)
            row = source.count("\n", 0, begin) + 1
            line = one_line(source[first:last])
            more = one_line(changed[first : last + len(changed) - len(source)])
            found[changed] = Mutant(path, row, line, more, changed)
    return list(found.values())


def changes_of(place: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    for kind, operator in OPERATORS:
        if isinstance(place, kind):
            made = list(operator(place))
            if isinstance(place, cst.SimpleString):
                made = made[:1]  # in capitals it is another text in the same way
            yield from (one if isinstance(one, tuple) else (place, one) for one in made)


def one_line(text: str) -> str:
    return " ".join(text.split())


def compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


# --- taking over a mutant's code in a process that has imported everything


def nested(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def is_function(code: types.CodeType) -> bool:
    return bool(code.co_flags & 1)  # CO_OPTIMIZED: not a module's or a class's body


def pairs_of(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, ...]]:
    yield old, new
    ours, theirs = nested(old), nested(new)
    if len(ours) == len(theirs):
        for pair in zip(ours, theirs):
            yield from pairs_of(*pair)
    else:
        by_name = {code.co_qualname: code for code in theirs}
        for code in ours:
            if code.co_qualname in by_name:
                yield from pairs_of(code, by_name[code.co_qualname])


def own_part(code: types.CodeType) -> tuple:
    """Without the functions in it."""
    plain = [const for const in code.co_consts if not isinstance(const, types.CodeType)]
    return code.co_code, code.co_names, repr(plain)


def functions_by_file() -> dict[str, list[types.FunctionType]]:
    """The functions of the package that there are, wrapped ones and methods too."""
    found = collections.defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType):
            found[one.__code__.co_filename].append(one)
    return found


def take_over(mutant: Mutant, functions: list[types.FunctionType]) -> None:
    """Gives every function of the module the mutant's code. Where the body of the module or of a
    class differs, that is run once more, and what others have imported from it is replaced.
    """
    file = str(CHECKOUT / "robomimic_ddp" / mutant.path)
    name = "robomimic_ddp." + mutant.path[: -len(".py")].replace("/", ".")
    old = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
    new = compile(mutant.source, file, "exec")
    pairs = list(pairs_of(old, new))
    if any(own_part(a) != own_part(b) for a, b in pairs if not is_function(a)):
        run_again(sys.modules[name.removesuffix(".__init__")], new)
    table = {a: b for a, b in pairs if is_function(a)}
    for function in functions:
        code = table.get(function.__code__)
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code


def run_again(module: types.ModuleType, code: types.CodeType) -> None:
    before = dict(vars(module))
    exec(code, vars(module))
    after = vars(module)
    replaced = {
        id(value): after[name]
        for name, value in before.items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for other in list(sys.modules.values()):
        if not getattr(other, "__name__", "").startswith(("robomimic_ddp", "tests")):
            continue
        for name, value in list(vars(other).items()):
            if id(value) in replaced:
                setattr(other, name, replaced[id(value)])
            elif other is not module and name in before and value is before[name]:
                setattr(other, name, after[name])


# --- running


class Runner:
    """A pytest plugin that runs the tests once as they are, then against each mutant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.killed_by: collections.Counter = collections.Counter()
        self.is_complete = True

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
    from _pytest.runner import runtestprotocol

    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
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
    print("\nNot mutated: type hints, docstrings, messages, texts for people (scripts/mutate.py).")
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
