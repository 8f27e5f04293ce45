"""The files of the state home: one module per file format."""
