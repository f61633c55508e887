"""Everything is in setup.cfg but this: templates/ and conf/ lie beside the package and are shipped inside it, and the
package page shows the README without what only the checkout has: pictures, and links to other files."""

import re
from pathlib import Path

from setuptools import find_packages, setup

readme = (Path(__file__).parent / "README.md").read_text("utf-8")
readme = re.sub(r"^!\[.*\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"`\1`", readme)

setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    packages=[*find_packages(include=["llamasrv", "llamasrv.*"]), "llamasrv.templates", "llamasrv.conf"],
    package_dir={"llamasrv.templates": "templates", "llamasrv.conf": "conf"},
)
