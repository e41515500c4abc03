"""Runs on disk and several runs together: the runner, the run folder, checkpoints, summaries and figures."""
