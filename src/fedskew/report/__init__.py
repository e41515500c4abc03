"""The page of a run, or of several: one HTML file with everything in it, made from run folders."""
