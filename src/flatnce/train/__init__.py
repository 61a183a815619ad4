"""Training: optimizers, schedules and the loop that uses them."""

__all__: list[str] = []
