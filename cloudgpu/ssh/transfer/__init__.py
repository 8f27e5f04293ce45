"""File transfer to and from a node: select the files to send, compare trees, and put received files in place."""
