"""The plan of a round and how it is executed: one client after the other, or all of them stacked."""
