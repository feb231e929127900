"""scripts/train_multi_gpu.sh: turns flags and variables into one torchrun command."""
