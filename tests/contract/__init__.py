"""Brute-force tests of the public names: values are compared with sums from the definitions."""
