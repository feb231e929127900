"""ddp.profile: a trace of each rank's steps, and a line on what limits them."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import io
import json
import time
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from robomimic_ddp.monitoring.profiler import FOLDER, Profile, Profiler, computed, covered, line
from robomimic_ddp.training import epoch as seam
from tests.ranks.hosts import Algo
from tests.ranks.running import running

LIMITS = {
    "data is late: ddp.workers=auto, smaller": Profile(
        5, 1.0, busy=0.5, data=0.4, gradients=0.3, on_gpu=True, cores=4
    ),
    "data is late: more cores, `robomimic-ddp prepare-data` if": Profile(
        5, 1.0, busy=0.5, data=0.4, gradients=0.3, on_gpu=True, cores=4, is_rlds=True
    ),
    "more cores": Profile(5, 1.0, busy=0.83, data=0.1, gradients=0.12, on_gpu=False, cores=1),
    "gradients are late": Profile(5, 1.0, busy=0.5, data=0.01, gradients=0.3, on_gpu=True, cores=4),
    "the GPU limits": Profile(5, 1.0, busy=0.95, data=0.01, gradients=0.0, on_gpu=True, cores=4),
    "the CPU limits": Profile(5, 1.0, busy=0.95, data=0.01, gradients=0.0, on_gpu=False, cores=4),
    "launching limits": Profile(5, 1.0, busy=0.3, data=0.01, gradients=0.0, on_gpu=True, cores=4),
    "cores are idle, or other programs use": Profile(
        5, 1.0, busy=0.3, data=0.01, gradients=0.0, on_gpu=False, cores=4
    ),
}


def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
    for _ in range(len(data_loader) if num_steps is None else num_steps):
        model.process_batch_for_training({"actions": torch.ones(2, 1)})
        weight = torch.ones(64, 64)
        for _ in range(20):
            weight = weight @ weight / 64
        model.log_info({"losses": weight.mean(), "large": False})
    return {"Loss": 0.0}


def profiled(directory, steps, of_epoch, is_pass=False):
    """What the main rank prints in two epochs of `of_epoch` steps, or passes over as many."""
    printed = io.StringIO()
    with (
        running(Path(directory), profile=steps) as run,
        contextlib.redirect_stdout(printed),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message=".*Profiler ")
        algo, logged = Algo(), seam.epoch_log(run_epoch)
        for number in (1, 2):
            run.progress.part.epoch = number
            loader, count = ([None] * of_epoch, None) if is_pass else ([], of_epoch)
            logged(algo, loader, number, num_steps=count)
    return [text for text in printed.getvalue().splitlines() if "profile" in text]


def traced_steps(file: Path) -> int:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    # Their starts: torch 2.0 gives the first two one number.
    return len({event["ts"] for event in events if "ProfilerStep#" in event.get("name", "")})


def test_each_rank_leaves_a_trace_and_the_main_rank_prints_a_line(ranks, tmp_path):
    main, *others = ranks.run(profiled, str(tmp_path), 3, 15)
    assert not any(others) and len(main) == 2, "once in a run, on the main rank"
    assert main[0].startswith("profile of 3 steps of ") and " busy " in main[0]
    assert main[1] == f"Its traces are in {tmp_path / FOLDER}, for https://ui.perfetto.dev"
    traces = sorted((tmp_path / FOLDER).iterdir())
    assert [one.name for one in traces] == [f"rank{n}.pt.trace.json.gz" for n in (0, 1)]
    assert [traced_steps(one) for one in traces] == [3, 3]


@pytest.mark.parametrize("is_pass", [False, True])
def test_an_epoch_that_is_too_short_says_so(ranks, tmp_path, is_pass):
    """Only the main rank knows the length of a pass before it."""
    main = ranks.run(profiled, str(tmp_path), 8, 15, is_pass)[0]
    assert main == [
        "ddp.profile=8: nothing is profiled in this epoch, which takes 15 step(s); expected 10 to "
        "settle and 8 more"
    ]
    assert not (tmp_path / FOLDER).exists()


def data_share(directory):
    """The share of waiting for data in the log of an epoch in which the profiler ends slowly."""
    stop = Profiler._stop

    def stop_slowly(profiler):
        time.sleep(3)
        stop(profiler)

    with (
        running(Path(directory), profile=3) as run,
        mock.patch.object(Profiler, "_stop", stop_slowly),
    ):
        run.progress.part.epoch = 1
        log = seam.epoch_log(run_epoch)(Algo(), [], 1, num_steps=15)
    return log["Time_Data_Wait_Share"]


def test_the_end_of_the_profiler_is_no_wait_for_data(ranks, tmp_path):
    assert max(ranks.run(data_share, str(tmp_path))) < 0.9  # 3 s of waiting would be more


def test_training_continues_where_no_trace_can_be_written(ranks, tmp_path):
    (tmp_path / FOLDER).write_text("not a folder")
    for main in ranks.run(profiled, str(tmp_path), 3, 15)[:1]:
        assert main[0].startswith("profile of 3 steps of ")


@pytest.mark.parametrize("limit", LIMITS)
def test_the_line_names_what_limits_a_step(limit):
    assert limit in line([LIMITS[limit]] * 2)


def test_kernels_that_overlap_count_once():
    assert covered([(0, 2), (1, 3), (1, 2), (5, 6)]) == 4 and covered([]) == 0


@pytest.mark.skipif(
    "is_user_annotation" not in inspect.signature(FunctionEvent.__init__).parameters,
    reason="this torch does not say what the program has named",
)
def test_what_the_program_names_and_messages_are_no_computing_of_the_gpu():
    """torch shows "ProfilerStep#3" on the GPU as well, gaps between its kernels included."""
    gpu = {"thread": 0, "device_type": DeviceType.CUDA}
    events = [
        FunctionEvent(1, "kernel", start_us=0, end_us=2e6, **gpu),
        FunctionEvent(2, "ProfilerStep#3", start_us=0, end_us=9e6, is_user_annotation=True, **gpu),
        FunctionEvent(3, "kernel", start_us=8e6, end_us=9e6, **gpu),
        FunctionEvent(
            4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start_us=3e6, end_us=7e6, **gpu
        ),
        FunctionEvent(5, "aten::mm", thread=0, start_us=0, end_us=9e6),
    ]
    assert computed(events) == 3
