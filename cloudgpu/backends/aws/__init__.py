"""The AWS backend. The backend of the rehearsal cloud runs the same code with a different endpoint."""
