#!/usr/bin/env bash
# Makes .venv in this checkout if need be (Python 3.10 to 3.13), then runs the tests; arguments go to
# pytest:  scripts/test.sh -k sampler
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
make_environment "$checkout" robomimic,rlds,test
cd "$checkout"
unset PYTHONDONTWRITEBYTECODE  # compiled anew, a thousand times over, the tests take minutes more
exec "$environment_python" -m pytest "$@"
