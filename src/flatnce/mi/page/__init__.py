"""The page about an estimate."""
