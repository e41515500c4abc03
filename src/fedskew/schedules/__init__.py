"""Which samples one model sees in a round: the label schedule and the choice of clients of Stratify, and SFL."""
