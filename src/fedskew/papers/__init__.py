"""The papers' own tables, measured again: one TOML file for each table or figure, with the printed numbers beside ours."""
