"""One method, one small frozen class."""
