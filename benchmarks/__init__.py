"""The solvers side by side with peers and with the machine's limit; each benchmark prints ratios and writes JSON.

Libraries get one thread each, so that a number of threads is what a benchmark says it is. They read these variables
when they are imported, hence here: `python -m benchmarks.NAME` runs this file first.
"""

import os

for _library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"
