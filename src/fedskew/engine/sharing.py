"""The word for a model that clients share whole, which the summaries of runs have too."""

WHOLE = "whole"  # with all its parts; otherwise it is said why not
