"""Correlated noise mechanisms for differential privacy."""
