"""Behind scripts/train_multi_gpu.sh: flags and variables in, one torchrun command out."""
