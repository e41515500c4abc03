"""The tables of the papers, measured again: a TOML file for each, with the printed numbers and claims."""
