"""The demonstration model that comes with llamasrv, and in a checkout everything that made it.

`MODEL` is the file that is served if no other model is named, `EYES` its projector for images. Importing this package
costs nothing: the corpus, the training and the evaluation are loaded by `python -m llamasrv.demo` alone, and an
installed package does not have them.
"""

from pathlib import Path

NAME = "llamasrv-demo"
MODEL = Path(__file__).with_name("model.gguf")
EYES = MODEL.with_name("model-mmproj.gguf")
