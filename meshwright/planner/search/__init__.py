"""The search over meshes and numbers of micro-batches, with and without rematerialisation."""
