"""Read a data set into arrays; the catalogue of known sets."""
