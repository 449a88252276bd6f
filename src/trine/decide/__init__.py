"""Decisions from several simulations: comparison of two answers, sensitivity, cost of a training run, sizing, support."""
