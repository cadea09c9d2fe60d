"""Discrete-event simulation of a cluster on the same policy classes as the engine."""
