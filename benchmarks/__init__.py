"""Side-by-side timing; never part of the tests. Figures are ratios within one run, because machines are noisy."""
