"""The known data sets, one family a file."""
