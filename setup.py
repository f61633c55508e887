"""Everything is in setup.cfg but this: templates/ and conf/ lie beside the package and are shipped inside it; what made
the demonstration model stays in the checkout; the package page shows the README without what only the checkout has:
pictures, and links to other files; and an installation without a compiler ends at once, in one line."""

import os
import re
import shutil
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info

readme = (Path(__file__).parent / "README.md").read_text("utf-8")
readme = re.sub(r"^!\[.*\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"`\1`", readme)


class BuildWithoutWorkshop(build_py):
    """Of llamasrv.demo only where its files are is shipped, and the files of the model (setup.cfg)."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [m for m in modules if package != "llamasrv.demo" or m[1] == "__init__"]


# Where pip and uv are told to look for compiled packages.
WHEELS = ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS")
NO_COMPILER = (
    "llamasrv: no C++ compiler, which llama-cpp-python needs: install one (apt install build-essential, dnf install "
    "gcc-c++, xcode-select --install), or name compiled wheels: "
    "PIP_EXTRA_INDEX_URL=https://abetlen.github.io/llama-cpp-python/whl/cpu (for uv: UV_INDEX)"
)


def has_compiled():
    """Whether pip or uv keep a wheel of llama-cpp-python that they compiled before."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [
        Path(os.environ.get("PIP_CACHE_DIR") or caches / "pip") / "wheels",
        *Path(os.environ.get("UV_CACHE_DIR") or caches / "uv").glob("sdists-v*"),
    ]
    return any(True for folder in folders for _ in folder.glob("**/llama_cpp_python-*.whl"))


class MetadataOfAnInstallation(dist_info):
    """The first that pip and uv ask of a checkout that they install; building a wheel for others skips it."""

    def run(self):
        configured = [os.environ.get("CXX", ""), sysconfig.get_config_var("CXX") or ""]
        compilers = [*(words[0] for words in map(str.split, configured) if words), "c++", "g++", "clang++"]
        installed = Path(sysconfig.get_path("platlib"), "llama_cpp").is_dir()
        named = any(map(os.environ.get, WHEELS))
        if not (installed or any(map(shutil.which, compilers)) or named or has_compiled()):
            raise SystemExit(NO_COMPILER)
        super().run()


packages = find_packages(include=["llamasrv", "llamasrv.*"], exclude=["llamasrv.demo.*"])

setup(
    cmdclass={"build_py": BuildWithoutWorkshop, "dist_info": MetadataOfAnInstallation},
    long_description=readme,
    long_description_content_type="text/markdown",
    packages=[*packages, "llamasrv.templates", "llamasrv.conf"],
    package_dir={"llamasrv.templates": "templates", "llamasrv.conf": "conf"},
)
