"""The inference engine. Knows tokens and bytes; knows no protocol, no HTTP and no chat."""

import os

# Set before numpy is imported: we multiply no matrices with it, and starting OpenBLAS's threads takes half of its
# import time. An operator's own setting wins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
