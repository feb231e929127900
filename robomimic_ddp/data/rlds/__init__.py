"""Reading RLDS datasets: sharding before decoding, windows, statistics. TensorFlow is imported
inside functions.

A pass goes: files and episodes in a shared random order, cut over the ranks (`partition`, `course`)
-> an order in which the windows leave the shuffle buffer (`shuffle`), planned block by block
(`plans`) -> raw records by byte offset, windows of still encoded frames, put into that buffer
(`store`) -> batches, decoded and normalised in one graph (`pipeline`) -> torch tensors (`loader`).
`dataset` and `mixture` know nothing of the loaders that read them, which `make` makes. `host` has
what the edited host sees.
"""
