"""Everything is in setup.cfg but this: templates/ and conf/ lie beside the package and are shipped inside it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["llamasrv", "llamasrv.*"]), "llamasrv.templates", "llamasrv.conf"],
    package_dir={"llamasrv.templates": "templates", "llamasrv.conf": "conf"},
)
