"""Several agents on one environment, with as many seeds each, and what may be said of the difference: `ube.compare`."""
