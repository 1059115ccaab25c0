"""Judge tensors that an engine wrote to files, one file a case."""
