"""Tests of the public names by brute force: every value is compared with sums written from the definitions."""
