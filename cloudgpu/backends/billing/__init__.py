"""Billing code that backends share: ledger rows, prices and costs."""
