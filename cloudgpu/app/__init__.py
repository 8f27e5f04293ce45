"""Use cases. Each takes its collaborators as arguments and returns a frozen outcome; nothing here prints.

The one path of `train`: load -> plan (no mutation) -> confirm -> open the ledger -> up, candidate by candidate ->
connect -> gate -> stage -> launch -> follow -> collect -> down -> close the ledger -> report. Every stage before
`open` may be repeated freely; every stage after it can be killed at any point and `down` still finds everything.
"""
