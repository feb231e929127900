"""The seam where a host makes its run directory."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable

from robomimic_ddp import env, group, host_config, main_rank, places, state
from robomimic_ddp import run as _run
from robomimic_ddp.errors import UnpatchedScript


def run_directory(get_exp_dir: Callable) -> Callable:
    """Collective: decorates `get_exp_dir`: made once, by the main rank; the same paths, or error,
    on all ranks. A run that goes on gets the paths that it had, and nothing is asked or removed.
    """

    @functools.wraps(get_exp_dir)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        launch = env.read_launch_env()
        if launch.world_size > 1 and not group.is_initialized():
            raise UnpatchedScript(
                "this host is half patched: its train() makes the run's folders on several ranks "
                "without @DDPUtils.distributed, so every rank would train alone and write the same "
                "files. The train script was put back (by git?), or is not patched. Run "
                "`robomimic-ddp apply` on the host.",
                quiet=launch.rank > 0,
            )
        places.reached("run directory")

        def make() -> Any:
            run = _run.current()
            if run is not None and run.found is not None and run.found.paths:
                paths, directory = run.found.paths, run.found.directory
                for path in paths:
                    if path is not None:
                        Path(path).mkdir(exist_ok=True)
            else:
                paths = get_exp_dir(*args, **kwargs)
                directory = host_config.common_directory(paths)
            if run is not None:
                job = state.job_name(env.read_launch_env())
                place = {"job": job, "paths": state.relative_paths(directory, paths)}
                run.begin_record(directory, place)
            return paths

        paths = main_rank.on_main(make)
        run = _run.current()
        if run is not None:
            run.start_pulse(host_config.common_directory(paths))
        return paths

    return wrapped
