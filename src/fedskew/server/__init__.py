"""One run in memory: rounds, participation, client state, evaluation and calibration."""
