"""The topologies: how a round moves the model, which samples it is trained on, and what that costs."""
