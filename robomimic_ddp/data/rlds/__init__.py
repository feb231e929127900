"""Reading RLDS datasets: sharding before decoding, windows, statistics; without TensorFlow, which
only hosts with another pipeline need.

The modules, in the order of the data:

order     files and episodes in a shared random order (`pass_order`), cut over the ranks
          (`partition`), pass after pass (`pass_schedule`); the order in which windows leave the
          shuffle buffer (`shuffle_plan`), planned block by block (`read_plan`)
pipeline  windows of encoded frames in that buffer and batches, decoded and normalised (`engine`),
          in a process for each rank (`process`) that shares memory with it (`shared`)
loaders   torch tensors; `make` makes the loader of a dataset, which knows nothing of loaders;
          `remote` is the rank's end of that process

`schema` names what is read, `index` says where it is in the files, `window_table` which windows
that gives. `host_datasets` has what edited
hosts call; `tfds_sharding` and `octo_statistics` are for hosts with a pipeline over
tensorflow-datasets.
"""
