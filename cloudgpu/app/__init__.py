"""The use cases. Each one receives its dependencies as arguments and returns a frozen outcome. Nothing here prints.

The stages of `train` are: load -> plan (no mutation) -> confirm -> open the ledger -> up, candidate by candidate ->
connect -> gate -> stage -> launch -> follow -> collect -> down -> close the ledger -> report. The stages before
`open` can be repeated freely. If a later stage is killed at any point, `down` still finds every resource.
"""
