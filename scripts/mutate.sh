#!/usr/bin/env bash
# Mutation tests of the modules that decide what is trained on: which mutants no test sees, and the
# share of those that one does. Arguments go to scripts/mutate:
#   scripts/mutate.sh --sample 20            20 mutants of each module, the same each time
#   scripts/mutate.sh --module mixture_quota all mutants of the modules with this in their path
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
check_arguments mutate "$@"
make_environment "$checkout" robomimic,rlds,test,mutate
cd "$checkout"
exec env PYTHONPATH="$checkout" "$environment_python" -m scripts.mutate "$@"
