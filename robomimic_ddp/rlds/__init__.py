"""Reading RLDS datasets: sharding before decoding, windows, statistics. TensorFlow is imported inside functions."""
