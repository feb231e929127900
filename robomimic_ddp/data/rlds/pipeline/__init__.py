"""The tf.data graph: raw records to windows, a shuffle buffer, decoded batches."""
