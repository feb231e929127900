#!/usr/bin/env bash
# The project at work on a bare machine (Python 3.10 to 3.13, no GPU needed): installs, without TensorFlow,
# writes an RLDS dataset, patches a copy of a real robomimic, trains its diffusion policy on one rank per visible GPU or on two
# CPU ranks, lets the policy act before and after training, draws it and the curves, and prints a summary.
# Two CPU ranks learn in minutes, since the policy's net is small: the copy has the edit unet_config, so these
# checkpoints load in that copy only. Those of docs/examples.md load in an unedited robomimic.
# Everything stays in this checkout, under .venv and runs/demo, but for compiled filters of images
# (~/.cache/robomimic_ddp/rlds/compiled). A second run does only what is left.
# Arguments are added to the training's dot-list:  scripts/demo.sh train.num_epochs=3
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
check_arguments demo "$@"
trap 'echo "stopped while .venv was made: the same command finishes it, then the demo" >&2; exit 130' INT TERM
[ -x "$checkout/.venv/bin/python" ] ||
    echo "installs itself first, then measures this machine and says how long it takes" >&2
make_environment "$checkout" robomimic,rlds
trap - INT TERM
cd "$checkout"
exec "$environment_python" -m scripts.demo --root "$checkout/runs/demo" "$@"
