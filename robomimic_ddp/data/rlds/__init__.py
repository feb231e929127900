"""Reading RLDS datasets: sharding before decoding, windows, statistics. TensorFlow is imported
inside functions.

The modules, in the order of the data:

order     files and episodes in a shared random order (`pass_order`), cut over the ranks
          (`partition`), pass after pass (`pass_schedule`); the order in which windows leave the
          shuffle buffer (`shuffle_plan`), planned block by block (`read_plan`)
pipeline  raw records by byte offset, windows of encoded frames in that buffer (`shuffle_buffer`),
          batches decoded and normalised in one graph (`graph`)
loaders   torch tensors; `make` makes the loader of a dataset, which knows nothing of loaders

`schema` names what is read, `index` says where it is in the files. `host_datasets` has what edited
hosts call; `tfds_sharding` and `octo_statistics` are for hosts with a pipeline over
tensorflow-datasets.
"""
