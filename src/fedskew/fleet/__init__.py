"""Clients as machines: speed, bandwidth, availability, drop-out, and the virtual clock."""
