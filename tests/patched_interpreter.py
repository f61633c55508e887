"""Code that runs in a process of its own, patched by gevent: a patched interpreter cannot be unpatched."""

import subprocess
import sys
import textwrap

PATCHED = """
    from gevent import monkey; monkey.patch_all()
    import gevent, time
    from llamasrv.concurrency import RealThread
    from llamasrv.engine.base.channels import Doorbell, Stream
    real_sleep = monkey.get_original("time", "sleep")
"""


def run(code):
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()
