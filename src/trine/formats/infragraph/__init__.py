"""InfraGraph infrastructures (docs/formats/infragraph.md): read, and written so that they read back equal."""
