#!/usr/bin/env bash
# Runs on a machine with GPUs what this project's own tests cannot show without one: a line and a JSON row
# a check. A rehearsal takes six minutes on two cores. On an H200 the checks that compile nothing and
# time nothing took ten.
#   scripts/gpu_check.sh              all checks that the GPUs here allow; writes gpu_check.json
#   scripts/gpu_check.sh --only A,B   checks whose name contains A or B
#   scripts/gpu_check.sh --budget 560 the strongest checks, in this many seconds
#   scripts/gpu_check.sh --cpu        a rehearsal of the same checks on the CPU
# GPU_CHECK_PYTHON=/path/to/python uses that environment as it is: what a check needs and it lacks is a
# skip. GPU_CHECK_WHEELS=FOLDER lends it the wheels there (robomimic's, say), without a network.
# CUDA_VISIBLE_DEVICES chooses GPUs. Exit code: 0 all is well, 1 a check failed.
set -euo pipefail
GPU_CHECK_BEGAN="$(date +%s)"  # the budget includes what is installed
export GPU_CHECK_BEGAN
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
check_arguments gpu_check "$@"
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"
if [ -z "${GPU_CHECK_PYTHON:-}" ]; then
    make_environment "$checkout" robomimic,rlds,test
else
    environment_python="$GPU_CHECK_PYTHON"
    if [ -n "${GPU_CHECK_WHEELS:-}" ]; then
        GPU_CHECK_LENT="$(mktemp -d)"
        export GPU_CHECK_LENT
        trap 'rm -rf "$GPU_CHECK_LENT"' EXIT
        "$environment_python" -m pip install --quiet --no-index --no-deps --target "$GPU_CHECK_LENT" "$GPU_CHECK_WHEELS"/*.whl
        export PYTHONPATH="$PYTHONPATH:$GPU_CHECK_LENT"
    fi
fi
missing="$("$environment_python" -c "import psutil, h5py, torch" 2>&1)" || {
    echo "error: $environment_python lacks what every check needs: ${missing##*$'\n'}" >&2
    exit 1
}
# Without the current folder, whose packages may be called scripts and tests too.
start='import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_module("scripts.gpu_check", run_name="__main__", alter_sys=True)'
"$environment_python" -c "$start" "$@"
