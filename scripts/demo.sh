#!/usr/bin/env bash
# The main job on a bare machine: installs, writes a small RLDS data set, patches a copy of the host and
# trains its diffusion policy on one rank per visible GPU, or on two CPU ranks. Everything stays under
# runs/demo in this checkout; a second run skips what is there. Arguments are added to the training's
# dot-list:  scripts/demo.sh train.num_epochs=3
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
make_environment "$checkout" robomimic,rlds,test
cd "$checkout"
demo="$checkout/runs/demo"
mkdir -p "$demo"
export USE_TF=0 # keeps transformers, which the host imports, from loading TensorFlow as well

if [ ! -e "$demo/data/complete" ]; then
    rm -rf "$demo/data"
    "$environment_python" -m robomimic_ddp.demo.write_dataset --out "$demo/data" --episodes 120 --seed 0
    touch "$demo/data/complete"
fi

rm -rf "$demo/host"
mkdir -p "$demo/host"
installed="$("$environment_python" -c 'import importlib.util as u; print(u.find_spec("robomimic").submodule_search_locations[0])')"
cp -R "$installed" "$demo/host/robomimic"
"$environment_python" -m robomimic_ddp apply "$demo/host"

gpus="$("$environment_python" -c 'import torch; print(torch.cuda.device_count())')"
ranks=$(( gpus > 0 ? gpus : 2 ))
export PYTHONPATH="$demo/host:$checkout" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
"$environment_python" -m torch.distributed.run --standalone --nproc_per_node="$ranks" \
    -m robomimic.scripts.train_rlds load_from=configs/demo.json train.batch_size=16 \
    train.data_path="$demo/data" train.output_dir="$demo/output" "$@"
