"""Whether llamasrv is ready, for health checks inside a container: exit code 0, or 1 with the reason.

PORT is that of the server (8080); KEY_FILE names a file with a key, where the server has keys.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

request = urllib.request.Request(f"http://127.0.0.1:{os.environ.get('PORT', '8080')}/readyz")
if "KEY_FILE" in os.environ:
    request.add_header("Authorization", "Bearer " + Path(os.environ["KEY_FILE"]).read_text("utf-8").strip())
try:
    with urllib.request.urlopen(request, timeout=4):
        sys.exit(0)
except OSError as error:
    sys.exit(f"not ready: {error}")
