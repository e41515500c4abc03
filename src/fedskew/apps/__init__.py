"""The two apps that Flower runs: on the server, and on every node."""
