"""Pages of training runs: of one run, and of several to compare."""

import tomllib
from pathlib import Path

CATALOGUE = tomllib.loads(Path(__file__).with_name("charts.toml").read_text(encoding="utf-8"))
TEXT: dict[str, str] = CATALOGUE["text"]
