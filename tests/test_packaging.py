"""What is shipped: templates/ and conf/ lie beside the package in a checkout and must be found in any installation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="70.1")
ROOT = Path(__file__).resolve().parents[1]
DEMO = {f"llamasrv/demo/{name}" for name in ("__init__.py", "README.md", "model.gguf", "model-mmproj.gguf")}
PARTS = ("llamasrv", "templates", "conf", "setup.cfg", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy, so that building leaves nothing in the real one."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=ignore)
        else:
            shutil.copy(source, copy / name)
    return copy


def build(kind, checkout, target):
    """The file that `kind` (wheel, sdist, editable) makes of a checkout."""
    target.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print('made', build_meta.build_{kind}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.rpartition("made ")[2].strip()


def unpacked(archive, target):
    if archive.suffix == ".whl":
        zipfile.ZipFile(archive).extractall(target)
        return target
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return next(target.iterdir())


def found_by(site):
    """The shipped folders as an interpreter that knows only this installation, and what it depends on, finds them."""
    dependencies = [path for path in sys.path if path.endswith("-packages")]  # of which no .pth file is read
    code = (
        f"import site, sys; site.addsitedir({str(site)!r})\n"
        "import llamasrv\n"  # this one, although there may be another beside the dependencies
        f"sys.path += {dependencies}\n"
        "from llamasrv.config import paths\n"
        "for folder in (paths.templates_dir(), paths.conf_dir()):\n"
        "    print(folder)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def check(templates, conf):
    assert {p.name for p in (templates / "chat").iterdir()} >= {"chatml.jinja", "plain.jinja"}
    assert {p.name for p in conf.iterdir()} >= {"gunicorn.conf.py", "llamasrv.toml", "nginx.conf", "llamasrv.service"}


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_carries_templates_and_conf_inside_the_package(wheel, tmp_path):
    templates, conf = found_by(unpacked(wheel, tmp_path))
    assert templates == tmp_path / "llamasrv/templates" and conf == tmp_path / "llamasrv/conf"
    check(templates, conf)


def test_a_wheel_has_every_file_of_the_package_and_no_test(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "llamasrv").rglob("*") if p.is_file()}
    workshop = {name for name in files if name.startswith("llamasrv/demo/")} - DEMO
    assert {name for name in files if "__pycache__" not in name} - workshop <= names
    assert not any(name.split("/")[0] in ("tests", "templates", "conf") for name in names)


def test_a_wheel_has_the_demonstration_model_without_what_made_it(wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.startswith("llamasrv/demo/")} == DEMO
    site = unpacked(wheel, tmp_path)
    code = "from llamasrv.demo import EYES, MODEL; print(MODEL, EYES, MODEL.exists() and EYES.exists())"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=site, timeout=60)
    assert done.stdout.split() == [
        f"{site}/llamasrv/demo/model.gguf",
        f"{site}/llamasrv/demo/model-mmproj.gguf",
        "True",
    ]


def test_a_wheel_built_from_the_sdist_is_the_same(checkout, wheel, tmp_path):
    sdist = build("sdist", checkout, tmp_path / "sdist")
    again = build("wheel", unpacked(sdist, tmp_path / "unpacked"), tmp_path / "wheel")
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_an_editable_install_uses_the_checkout(checkout, tmp_path):
    site = unpacked(build("editable", checkout, tmp_path / "wheel"), tmp_path / "site")
    templates, conf = found_by(site)
    assert templates == checkout / "templates" and conf == checkout / "conf"
    check(templates, conf)


def test_the_command_is_installed(wheel, tmp_path):
    entry_points = next(unpacked(wheel, tmp_path).glob("*.dist-info/entry_points.txt"))
    assert "llamasrv = llamasrv.cli:main" in entry_points.read_text()


def test_the_package_page_links_to_nothing_that_is_not_on_it(checkout, tmp_path):
    wheel = unpacked(build("wheel", checkout, tmp_path / "page"), tmp_path / "files")
    page = next(wheel.glob("*.dist-info/METADATA")).read_text("utf-8")
    assert "# llamasrv" in page and "`conf/README.md`" in page
    assert not re.findall(r"\]\((?!https?:)", page)


@pytest.mark.parametrize(
    ("more", "passes"),
    [
        ({}, False),
        ({"PIP_EXTRA_INDEX_URL": "https://host/whl/cpu"}, True),
        ({"PIP_CACHE_DIR": "pip"}, True),
        ({"UV_CACHE_DIR": "uv"}, True),
    ],
)
def test_without_a_compiler_an_installation_ends_in_one_line(checkout, tmp_path, more, passes):
    """It ended in 20 lines of CMake. Building a wheel needs no compiler, nor does a wheel that was compiled before."""
    for folder in ("pip/wheels/7f/a1", "uv/sdists-v9/pypi/llama-cpp-python"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl").touch()
    more = {name: str(tmp_path / value) if value in ("pip", "uv") else value for name, value in more.items()}
    code = (
        "import sysconfig; get = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: None if name == 'CXX' else get(name)\n"
        "sysconfig.get_path = lambda name, path=sysconfig.get_path: '/none' if name == 'platlib' else path(name)\n"
        "from setuptools import build_meta\n"
        f"build_meta.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env={"PATH": "", "HOME": "/none", **more},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode == 0) is passes, done.stderr
    assert passes or done.stderr.startswith("llamasrv: no C++ compiler") and done.stderr.count("\n") == 1
