"""Values that describe a cloud account: its tagged resources, its storage, and what the caller may do.

The interface of the backends names them, so they import nothing of any cloud.
"""
