"""Programs that run on nodes, and builders for the commands that nodes receive.

`agent` is the program that `payload` packs into one file and that the CLI copies to each node. `bootstrap` renders the
script in a node's user data and extends the node's expiry, and `connected_command` stops a command when its client
disconnects. The other modules build the commands that mount data and start containers.
"""
