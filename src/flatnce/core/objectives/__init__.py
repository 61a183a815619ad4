"""The objectives: functions of a contrast, modules around them, and their registry."""
