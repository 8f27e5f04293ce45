"""The use cases behind the commands. They receive their dependencies as arguments, and print nothing.

The steps of `train` are: load the recipe -> plan -> confirm -> open the run's ledger row -> check the data -> create
the cluster, trying one candidate after another -> connect -> check the hardware -> stage -> start -> follow -> collect
the outputs -> delete the cluster -> close the ledger row -> report. The steps before the ledger row is opened create
nothing and can be repeated. If the process is killed during a later step, `down` still finds every resource.
"""
