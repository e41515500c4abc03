"""Federated learning for clients that are nothing alike."""
