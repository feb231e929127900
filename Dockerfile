# A machine with robomimic, patched for several GPUs. torch's wheels bring CUDA; the driver is the host's.
#   docker build -t robomimic-ddp .
#   docker run --gpus all --ipc=host -v ~/data:/data robomimic-ddp \
#       torchrun --nproc_per_node=4 -m robomimic.scripts.train --config /data/cfg.json
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git g++ libegl1 libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/robomimic-ddp
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".[robomimic,rlds,plot]"
# The installed robomimic. For your own codebase: COPY it, pip install it, and name its folder.
RUN robomimic-ddp apply "$(python -c 'import importlib.util as u; print(*u.find_spec("robomimic").submodule_search_locations)')"
WORKDIR /data
