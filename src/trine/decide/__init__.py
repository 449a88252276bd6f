"""Decisions from simulations: comparison of answers, sensitivity, cost of a training run, sizing, support."""
