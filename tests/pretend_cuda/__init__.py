"""Real torchrun jobs on GPUs that are pretended, on machines that have none.

Small C libraries, preloaded, stand in for CUDA's runtime, driver, cuBLAS and NCCL under torch's own
CUDA build: its own host code runs, memory is RAM, kernels do nothing. Shown: which GPU a process
touches, how often a step waits for it, whether all ranks make the same NCCL calls, errors on
branches for CUDA. Not shown: numbers, races between streams, compiled kernels, NCCL's failures.
"""
