"""How a round moves the model, which samples it sees, and what that costs."""
