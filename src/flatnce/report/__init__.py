"""The page frame and the charts that every page uses; nothing about a feature."""
