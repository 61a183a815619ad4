"""The paper's experiments: one short module a figure or table, each a config and a picture."""

__all__: list[str] = []
