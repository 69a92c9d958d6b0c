"""Optimised for balls-in-bins sampling: noise std times error."""
