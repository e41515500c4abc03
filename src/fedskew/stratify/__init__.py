"""Who trains on which label next: the label schedule and the label-aware choice of clients of Stratify."""
