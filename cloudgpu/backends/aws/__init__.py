"""The AWS backend. The rehearsal cloud uses the same code with a different endpoint."""
