"""Reading RLDS datasets: sharding before decoding, windows, statistics. TensorFlow is imported
inside functions.

A pass has these stations:

order     files and episodes in a shared random order, cut over the ranks (`partition`,
          `pass_schedule`); the order in which windows leave the shuffle buffer (`shuffle`), planned
          block by block (`read_plan`)
pipeline  raw records by byte offset, windows of encoded frames in that buffer (`shuffle_buffer`),
          batches decoded and normalised in one graph (`graph`)
loaders   torch tensors; `make` makes the loader of a dataset, which knows nothing of loaders

`schema` names what is read, `index` says where it is in the files. `host_datasets` has what the
edited host sees, `tfds_sharding` and `tfds_statistics` serve a host that has its own pipeline.
"""
