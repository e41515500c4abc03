"""The encrypted label protocol and secure sums."""
