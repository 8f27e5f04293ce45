"""The AWS backend. The rehearsal cloud is the same code with another endpoint."""
