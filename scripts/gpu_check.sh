#!/usr/bin/env bash
# Runs on a machine with GPUs what this project's own tests cannot show without one: a line and a JSON row
# a check. One GPU takes about 7 minutes, several about 15.
#   scripts/gpu_check.sh              all checks that the GPUs here allow; writes gpu_check.json
#   scripts/gpu_check.sh --only NAME  checks whose name contains NAME
#   scripts/gpu_check.sh --cpu        a rehearsal of the same checks on the CPU
# CUDA_VISIBLE_DEVICES chooses GPUs. Exit code: 0 all is well, 1 a check failed.
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
check_arguments gpu_check "$@"
make_environment "$checkout" robomimic,rlds,test
exec "$environment_python" "$checkout/scripts/gpu_check.py" "$@"
