"""Reading RLDS datasets: sharding before decoding, windows, statistics. TensorFlow is imported
inside functions.

A pass goes: files and episodes in a shared random order (`partition`) -> raw records by byte
offset, windows of still encoded frames, a shuffle buffer of those (`pipeline`) -> batches, decoded
and normalised in one graph (`finish`) -> torch tensors (`loader`). `host` holds what the edited
host sees.
"""
