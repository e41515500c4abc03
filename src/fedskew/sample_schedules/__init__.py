"""Schedules of samples in a round: Stratify's label schedule and client selection, and SFL."""
