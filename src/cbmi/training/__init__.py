"""Stages, optimiser, checkpoints, data-parallel, validation."""
