"""How the updates of a round become one: the weighted mean, and rules that keep a few clients from ruining it."""
