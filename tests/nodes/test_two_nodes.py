"""Two nodes with separate addresses and disks: their link is cut, or one of them is lost.

Wherever that happens, the run continues or both launchers end and name the node, and what is
resumed has the bits of a run that nothing interrupts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from tests.configs import make_config, write_config
from tests.hosts import FINISHED, Host, require_clean, torchrun
from tests.nodes.cluster import PORT, Cluster, Job, cluster, missing
from tests.nodes.held_train import reached, release
from tests.runs import newest, run_directory, state_differences

HELD = "tests.nodes.held_train"
LIMIT = 300.0
"""Seconds for what should take one: ranks and launchers start, or end after `TIMEOUT`."""
TIMEOUT = 20
"""ddp.timeout; longer than TCP needs after a cut of five seconds."""
RANDOM = ("/random/torch",)
RATES = {"ROBOMIMIC_DDP_LR_SCALING": "linear"}
"""As `launch` has it."""
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def require_namespaces() -> None:
    if reason := missing():
        pytest.skip(reason)


def config(folder: Path, dataset: Path) -> Path:
    """A run of four epochs of three steps, with a state after each."""
    ddp = {"save_seconds": 0, "timeout": TIMEOUT}
    made = make_config("bc", dataset, folder / "runs", {"train": {"num_epochs": 4}, "ddp": ddp})
    return write_config(folder / "config.json", made)


@pytest.fixture(scope="module")
def whole(once: Callable, host_copy: Host, low_dim_dataset: Path) -> dict[str, Any]:
    """The last state of the run on two ranks of one machine."""

    def train(folder: Path) -> None:
        words = ("none", folder / "happened", "--config", config(folder, low_dim_dataset))
        require_clean(torchrun(host_copy, HELD, *words, added=RATES))

    return newest(once("whole-of-two-nodes", train))


class Run:
    """The run on the nodes of a cluster."""

    def __init__(self, nodes: Cluster, host: Host, dataset: Path) -> None:
        self.nodes, self.host, self.folder = nodes, host, nodes.folder
        self.happened = self.folder / "happened"
        self.config = config(self.folder, dataset)

    def launch(self, plan: str = "none", *flags: str) -> list[Job]:
        """The documented command, on every node."""
        words = ("--rdzv", f"node01:{PORT}", "--gpus", 1, "--config", self.config, *flags)
        words = ("launch", "--nodes", 2, "--module", HELD, *words, "--", plan, self.happened)
        return [node.start(self.host, "-m", "robomimic_ddp", *words) for node in self.nodes.nodes]

    def elastic(self, node: int, plan: str = "none") -> Job:
        """What `launch --max-restarts` becomes, for one or two nodes."""
        flags = (f"--rdzv_endpoint=node01:{PORT}", "--rdzv_backend=c10d", "--nproc_per_node=1")
        flags += ("--nnodes=1:2", "--max_restarts=3", "--rdzv_conf=last_call_timeout=5")
        words = ("-m", HELD, plan, self.happened, "--config", self.config)
        launcher = ("-m", "robomimic_ddp.commands.launch.quiet_torchrun")
        added = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **RATES}
        return self.nodes[node].start(self.host, *launcher, *flags, *words, added=added)

    def wait_at(self, moment: str, *jobs: Job) -> None:
        deadline = time.monotonic() + LIMIT
        while not reached(self.happened, moment).exists():
            assert time.monotonic() < deadline and all(job.wait(0) is None for job in jobs), jobs
            time.sleep(0.05)

    def cut_at(self, moment: str, *jobs: Job) -> None:
        """Cuts the link while a rank waits at `moment`, which then continues."""
        self.wait_at(moment, *jobs)
        self.nodes[1].cut()
        release(self.happened, moment)


def require_codes(jobs: list[Job], *codes: int) -> None:
    assert [job.wait(LIMIT) for job in jobs] == list(codes), "\n\n".join(job.text for job in jobs)


def directory(run: Run, node: int = 0) -> Path:
    return run_directory(run.nodes[node].disk)


def require_whole(run: Run, whole: dict[str, Any]) -> None:
    """Fails unless the run has each epoch once, and the bits of the uninterrupted one."""
    state = read_file(directory(run) / STATE)
    assert state_differences(state, whole, telling=RANDOM) == []
    require_epochs_once(run)


def require_epochs_once(run: Run) -> None:
    lines = (directory(run) / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines if '"train"' in line] == [1, 2, 3, 4]
    assert [node.processes() for node in run.nodes.nodes] == [[], []]


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, host_copy: Host, low_dim_dataset: Path
) -> Iterator[Run]:
    """Two nodes, by default with IPv4 addresses."""
    with cluster(tmp_path / "nodes", version=getattr(request, "param", 4)) as nodes:
        yield Run(nodes, host_copy, low_dim_dataset)


OVER_BOTH = pytest.mark.parametrize("run", [4, 6], indirect=True, ids=["IPv4", "IPv6"])


@OVER_BOTH
def test_two_nodes_without_a_shared_disk_train_as_one_machine(run: Run, whole: Any) -> None:
    jobs = run.launch()
    require_codes(jobs, 0, 0)
    require_whole(run, whole)
    assert FINISHED in jobs[0].text and FINISHED not in jobs[1].text
    names = {path.name for path in directory(run, 1).rglob("*") if path.is_file()}
    assert names == {"log_rank1.txt", "rank1.json"} and "warning" not in jobs[1].text


@OVER_BOTH
def test_a_link_that_is_cut_for_five_seconds_changes_nothing(run: Run, whole: Any) -> None:
    """In validation, in a step, and in a save."""
    moments = ("0@validation:1", "1@5", "0@save:3")
    jobs = run.launch("+".join(moments))
    for moment in moments:
        run.cut_at(moment, *jobs)
        time.sleep(5)
        run.nodes[1].mend()
    require_codes(jobs, 0, 0)
    require_whole(run, whole)


@pytest.mark.parametrize(
    "run, moment",
    [(4, "1@5"), (6, "1@5"), (4, "0@save:2"), (4, "0@validation:3")],
    indirect=["run"],
)
def test_a_link_that_stays_cut_ends_both_nodes(run: Run, moment: str, whole: Any) -> None:
    jobs = run.launch(moment)
    run.cut_at(moment, *jobs)
    require_codes(jobs, 1, 1)
    main, other = (job.text for job in jobs)
    assert main.count("Not there yet: rank 1 (node02) is at: ") == 3  # a warning, the error twice
    assert "ROBOMIMIC_DDP_RESUME=true, before the same command on every node" in main
    assert "their store, in the launcher at node01:" in other
    assert "does not answer, so that node or the network to it is lost. A rank" in other
    assert "this node (node02) has ended, see its error above" in other
    run.nodes[1].mend()
    require_codes(run.launch("none", "--resume"), 0, 0)
    require_whole(run, whole)


def test_nodes_that_cannot_meet_say_where(run: Run) -> None:
    """Before torchrun's rendezvous, where the first node waits ten minutes, and before ours."""
    run.nodes[1].cut()
    waiting, job = run.launch()
    require_codes([job], 1)
    assert f"launch: the nodes cannot meet at node01:{PORT}: The client socket has" in job.text
    assert "on node02. Expected the same command on as many nodes" in job.text
    assert "Traceback" not in job.text.split("most recent call first")[-1]
    waiting.kill()
    run.nodes[1].mend()
    jobs = run.launch("1@join:1")
    run.cut_at("1@join:1", *jobs)
    require_codes(jobs, 1, 1)
    assert "the process group could not be formed" in jobs[0].text
    assert "the node or the network to it was lost (node01:" in jobs[1].text


def test_a_node_that_is_replaced_at_once_is_not_missed(run: Run, whole: Any) -> None:
    first, lost = run.elastic(0, "1@5"), run.elastic(1, "1@5")
    run.wait_at("1@5", first, lost)
    lost.kill()
    require_codes([first, run.elastic(1)], 0, 0)
    require_whole(run, whole)
    assert "because rank 1 (node02) failed" in first.text


def test_one_node_continues_alone_until_another_joins(run: Run) -> None:
    """A node without power closes no connection. The other one trains on alone, and torchrun starts
    its ranks again when the node is back, which is no failure.
    """
    plan = "1@5+0@8"
    first, lost = run.elastic(0, plan), run.elastic(1, plan)
    run.cut_at("1@5", first, lost)
    lost.kill()
    run.wait_at("0@8", first)  # of the second attempt
    assert "world size: 2 -> 1" in first.text
    run.nodes[1].mend()
    back = run.elastic(1, plan)
    deadline = time.monotonic() + LIMIT
    while "SIGTERM" not in first.text:
        assert time.monotonic() < deadline and first.wait(0.1) is None, first.text
    release(run.happened, "0@8")
    require_codes([first, back], 0, 0)
    assert "world size: 1 -> 2" in first.text
    require_epochs_once(run)
