"""The inference engine. Knows tokens and bytes; knows no protocol, no HTTP and no chat."""

import os

# Before numpy is imported: nothing here multiplies matrices with it, and starting OpenBLAS's threads takes as long as
# all else of its import. What the operator has set stays.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
