"""Pages of training runs: of one run, and of several to compare."""

from flatnce.toml_files import read_toml

CATALOGUE = read_toml(__file__, "charts.toml")
TEXT: dict[str, str] = CATALOGUE["text"]
