"""Advice: which method for these clients, from measures of their heterogeneity and short paired trials."""
