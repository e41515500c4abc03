"""One run in memory: the round, who takes part, what clients keep, evaluation, calibration."""
