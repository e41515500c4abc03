"""The plan of a round, and the engines that execute it: one client at a time, or all clients stacked."""
