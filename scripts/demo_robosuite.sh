#!/usr/bin/env bash
# The project at work on a real simulator (Python 3.11; a C compiler, which robosuite's evdev needs; no GPU,
# no display): installs robosuite, writes scripted demonstrations of its task Lift, patches a copy of a real
# robomimic and trains its diffusion policy, or with --algo bc its BC-RNN-GMM, on one rank per visible GPU or
# on two CPU ranks. The policy acts before and after by the host's own rollout loop, its episodes split over
# the ranks. Everything stays in this checkout, under .venv-robosuite and runs/demo_robosuite; a second run
# does only what is left. Arguments:  scripts/demo_robosuite.sh --help
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
oldest_python="3.11"
newest_python="3.11"
check_arguments demo_robosuite "$@"
make_environment "$checkout" robomimic,robosuite .venv-robosuite constraints-robosuite.txt
cd "$checkout"
exec "$environment_python" -m scripts.demo.lift --root "$checkout/runs/demo_robosuite" "$@"
