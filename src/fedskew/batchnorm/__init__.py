"""BatchNorm among clients: masked, merged, with shared statistics (FedTAN), and exact (Stratify)."""
