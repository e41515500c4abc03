"""Several processes that train the clients of one run: what they send each other."""
