"""findings (placeholder)."""

__all__ = ["findings_of"]

def findings_of(results):
    return []
