"""What backends share about money: ledger rows, prices and costs."""
