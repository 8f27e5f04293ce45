"""File transfer to and from a node: what is sent, how trees are compared, and how received files are put in place."""
