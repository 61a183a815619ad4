"""The commands of pretraining."""
