"""What may be chosen: meshes, strategies of ops, storage of parameters, layouts at boundaries."""
