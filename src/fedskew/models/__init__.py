"""A small zoo of nn.Modules."""
