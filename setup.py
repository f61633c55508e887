"""Everything is in setup.cfg but this: templates/ and conf/ lie beside the package and are shipped inside it; what made
the demonstration model stays in the checkout; and the package page shows the README without what only the checkout has:
pictures, and links to other files."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

readme = (Path(__file__).parent / "README.md").read_text("utf-8")
readme = re.sub(r"^!\[.*\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"`\1`", readme)


class BuildWithoutWorkshop(build_py):
    """Of llamasrv.demo only where its files are is shipped, and the files of the model (setup.cfg)."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [m for m in modules if package != "llamasrv.demo" or m[1] == "__init__"]


packages = find_packages(include=["llamasrv", "llamasrv.*"], exclude=["llamasrv.demo.*"])

setup(
    cmdclass={"build_py": BuildWithoutWorkshop},
    long_description=readme,
    long_description_content_type="text/markdown",
    packages=[*packages, "llamasrv.templates", "llamasrv.conf"],
    package_dir={"llamasrv.templates": "templates", "llamasrv.conf": "conf"},
)
