"""The known data sets, one family per file."""
