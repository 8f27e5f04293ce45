"""FSx for Lustre: file systems and their data repository associations."""
