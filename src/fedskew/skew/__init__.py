"""Cut one data set into unlike clients."""
