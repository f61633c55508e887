"""Imports point one way, and each foreign library has one home."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "llamasrv"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}

# What each part may import of the others. A part that is not listed has no rule and fails.
LEAVES = ("llamasrv", "llamasrv.atomic_file", "llamasrv.spawn", "llamasrv.errors", "llamasrv.domain")
THREADS = ("llamasrv.concurrency",)
ENGINE = (*LEAVES, *THREADS, "llamasrv.engine")
PIPELINE = (*ENGINE, "llamasrv.chat", "llamasrv.media", "llamasrv.models", "llamasrv.pipeline")
PAGES = ("llamasrv.config.paths", "llamasrv.config.manual")
WEB = (*PIPELINE, "llamasrv.protocols", "llamasrv.store", "llamasrv.tools", "llamasrv.web", *PAGES)
START = (*WEB, "llamasrv.config", "llamasrv.log", "llamasrv.startup")
COMMANDS = (*START, "llamasrv.commands", "llamasrv.demo")
ALLOWED = {
    "llamasrv.atomic_file": (),
    "llamasrv.spawn": (),
    "llamasrv.concurrency": (),
    "llamasrv.errors": (),
    "llamasrv.log": (),
    "llamasrv.domain": LEAVES,
    "llamasrv.engine": ENGINE,
    "llamasrv.chat": (*LEAVES, "llamasrv.chat", "llamasrv.config.paths"),
    "llamasrv.models": (*ENGINE, "llamasrv.models"),
    "llamasrv.media": (*LEAVES, "llamasrv.media"),
    "llamasrv.pipeline": PIPELINE,
    "llamasrv.protocols": (*LEAVES, "llamasrv.protocols"),
    "llamasrv.store": (*LEAVES, "llamasrv.store"),
    "llamasrv.tools": (*LEAVES, "llamasrv.tools"),
    "llamasrv.web.http.worker": START,
    "llamasrv.web": WEB,
    "llamasrv.config": (
        *LEAVES,
        "llamasrv.config",
        "llamasrv.engine.base.options",
        "llamasrv.engine.base.tensor_names",
    ),
    "llamasrv.config.paths": (),
    "llamasrv.config.manual": ("llamasrv.config.paths",),
    "llamasrv.config.docgen": (*LEAVES, "llamasrv.config", "llamasrv.protocols"),
    "llamasrv.startup": START,
    "llamasrv.startup.progress": (),
    "llamasrv.startup.systemd": (),
    "llamasrv.wsgi": START,
    "llamasrv.commands": COMMANDS,
    "llamasrv.cli": COMMANDS,
    "llamasrv.__main__": ("llamasrv.cli",),
    "llamasrv.demo": (*LEAVES, "llamasrv.chat", "llamasrv.demo", "llamasrv.engine", "llamasrv.config.paths"),
}

# Where each library may be imported. Those that are not listed may not be imported at all.
HOMES = {
    "flask": ("llamasrv.web",),
    "opentelemetry": ("llamasrv.web.ops.spans",),
    "werkzeug": ("llamasrv.web",),
    "backports": ("llamasrv.web.http.content_coding",),
    "compression": ("llamasrv.web.http.content_coding",),  # Python's own from 3.14 on
    "apispec": ("llamasrv.protocols.openapi",),
    "marshmallow": ("llamasrv.protocols", "llamasrv.config"),
    "orjson": (
        "llamasrv.protocols",
        "llamasrv.web",
        "llamasrv.chat",
        "llamasrv.pipeline.fingerprint",
        "llamasrv.tools",
    ),
    "jinja2": ("llamasrv.chat.renderer", "llamasrv.chat.sandbox"),
    "llama_cpp": ("llamasrv.engine.backend.library",),
    "llguidance": (
        "llamasrv.engine.sampling.grammar_compiler",
        "llamasrv.engine.sampling.grammar_matcher",
        "llamasrv.engine.sampling.grammar_trial",
    ),
    "numpy": (
        "llamasrv.engine",
        "llamasrv.media.pictures",
        "llamasrv.media.sounds",
        "llamasrv.media.spoken",
        "llamasrv.media.telephony",
        "llamasrv.media.voice_activity",
    ),
    "PIL": ("llamasrv.media.pictures",),
    "miniaudio": ("llamasrv.media.sounds",),
    "av": ("llamasrv.media.sounds", "llamasrv.media.spoken"),
    "gevent": (
        "llamasrv.spawn",
        "llamasrv.concurrency",
        "llamasrv.engine.base.channels",
        "llamasrv.web.streams.streaming",
        "llamasrv.web.sockets",
        "llamasrv.web.http.worker",
        "llamasrv.web.http.connection",
        "llamasrv.web.ops.diagnostics",
        "llamasrv.web.http.gate",
        "llamasrv.web.http.hub_watch",
    ),
    "gunicorn": ("llamasrv.web.http.worker", "llamasrv.web.http.connection", "llamasrv.commands.serve"),
    "huggingface_hub": ("llamasrv.models.pull",),
    "markdown_it": ("llamasrv.web.routes.docs",),
    "prometheus_client": ("llamasrv.web.ops.metrics",),
    "pypdf": ("llamasrv.media.documents",),
    "re2": ("llamasrv.pipeline.tool_search",),
    "wsproto": ("llamasrv.web.sockets.websocket",),
    "redis": ("llamasrv.store.redis",),
    "psycopg": ("llamasrv.store.postgres",),
    "click": (
        "llamasrv.cli",
        "llamasrv.commands.first_model",
        "llamasrv.commands.flags",
        "llamasrv.commands.group",
        "llamasrv.commands.help",
        "llamasrv.commands.key",
        "llamasrv.commands.models",
    ),
    "rich": ("llamasrv.commands", "llamasrv.startup.progress"),
    "tomli": ("llamasrv.config",),
    "tomllib": ("llamasrv.config",),  # of the standard library from 3.11 on
    "yaml": ("llamasrv.commands.migrate",),
}


@cache
def imports(module: str, *, typing: bool = False) -> frozenset[str]:
    """Full names of what a module imports, inside functions too; for typing alone only if asked."""
    return frozenset(imported_names(TREES[module], module, typing=typing))


def imported_names(tree: ast.Module, module: str, *, typing: bool) -> Iterator[str]:
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only and not typing:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            # `from llamasrv import config` imports a module, `from llamasrv.config import load` a name in one.
            yield from (f"{base}.{n.name}" if f"{base}.{n.name}" in MODULES else base for n in node.names)


def within(name: str, parts: tuple[str, ...]) -> bool:
    """Whether a module is one of these or inside one. The bare package holds only the version."""
    return any(name == part or (part != "llamasrv" and name.startswith(part + ".")) for part in parts)


def rule(module: str) -> tuple[str, ...]:
    parts = [part for part in ALLOWED if within(module, (part,))]
    assert parts, f"{module} is in no layer"
    return ALLOWED[max(parts, key=len)]


def offenders(found_in, modules=MODULES):
    """What a rule finds, by module; each rule is one test that lists all of it."""
    return {module: found for module in modules if (found := sorted(found_in(module)))}


def from_other_layers(module):
    return {name for name in imports(module) if name.split(".")[0] == "llamasrv" and not within(name, rule(module))}


def test_modules_import_only_from_layers_below():
    assert not offenders(from_other_layers, MODULES.keys() - {"llamasrv"})


# The engine's rooms, by floor: a module imports from its own room and from floors below. Modules of `llamasrv.engine`
# itself are the roof.
FLOORS = {"base": 0, "kv": 1, "sampling": 1, "drafts": 1, "media": 1, "backend": 1, "step": 2}


def room_of(module: str) -> str:
    room = module.removeprefix("llamasrv.engine.").split(".")[0]
    return room if room in FLOORS else "roof"


def upward_rooms(module):
    room = room_of(module)
    rooms = {room_of(name) for name in imports(module) if name.startswith("llamasrv.engine.")} - {room}
    return {other for other in rooms if FLOORS.get(other, 3) >= FLOORS.get(room, 3)}


def test_a_room_of_the_engine_imports_only_from_rooms_below():
    assert not offenders(upward_rooms, [name for name in MODULES if name.startswith("llamasrv.engine.")])


def test_no_module_of_the_chat_room_reaches_itself_by_its_imports():
    """Not for typing either: what each file needs of the others can be read from the bottom up."""
    modules = [name for name in MODULES if within(name, ("llamasrv.chat",))]
    found = {name: imports(name, typing=True) - {name} for name in modules}
    while True:  # take away what needs nothing that is left, until that is all
        free = {name for name, needs in found.items() if not needs & found.keys()}
        if not free:
            break
        found = {name: needs for name, needs in found.items() if name not in free}
    assert not found


# The demo's workshop (corpus, training, evaluation) is no part of the server and brings its own tools.
SERVER = [name for name in MODULES if not within(name, ("llamasrv.demo",))]


def libraries_from_elsewhere(module):
    foreign = {name.split(".")[0] for name in imports(module)} - set(sys.stdlib_module_names) - {"llamasrv"}
    return {library for library in foreign if not within(module, HOMES.get(library, ()))}


def test_a_library_is_imported_only_in_its_home():
    assert not offenders(libraries_from_elsewhere, SERVER)


FORKS = ("subprocess", "multiprocessing", "pty")
MAY_FORK = (
    "llamasrv.spawn",
    "llamasrv.commands",  # the command line's own process
    "llamasrv.tools.listing",  # both run in the process of tools/child.py
    "llamasrv.tools.places",
)


def test_a_server_starts_programs_in_one_place_only():
    """gevent's `subprocess` copies the page tables of the models' memory, which stops all streams."""
    modules = [name for name in SERVER if not within(name, MAY_FORK)]
    assert not offenders(lambda module: imports(module) & set(FORKS), modules)


def test_every_module_opens_by_saying_what_it_owns():
    assert not [name for name, tree in TREES.items() if tree.body and not ast.get_docstring(tree)]


def assigned_attributes(tree):
    """`module.attribute` wherever one is assigned to that comes from another package; Python's own library has settings
    that are made so."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(name.asname or name.name.split(".")[0]): name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {(name.asname or name.name): f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else ():
            for inner in target.elts if isinstance(target, ast.Tuple) else [target]:
                root = inner
                while isinstance(root, ast.Attribute):
                    root = root.value
                if root is inner or not isinstance(root, ast.Name):
                    continue
                package = imported.get(root.id, "llamasrv").split(".")[0]
                if package != "llamasrv" and package not in sys.stdlib_module_names:
                    yield ast.unparse(inner)


def test_nothing_of_another_package_is_replaced():
    assert not offenders(lambda module: assigned_attributes(TREES[module]), SERVER)


def test_a_replaced_global_would_be_seen():
    tree = ast.parse(
        "from gunicorn import util\nfrom gunicorn.http import parser\nutil.write_error = 1\nparser.P.kind = 2"
    )
    assert list(assigned_attributes(tree)) == ["util.write_error", "parser.P.kind"]


WAITED_FOR = {
    "Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Queue", "LifoQueue", "SimpleQueue",
    "Thread", "ThreadPool", "ThreadPoolExecutor", "local",
}  # fmt: skip
NEVER_WAITED_FOR = {"llamasrv.models.derived_files": "the lock is taken without waiting, or not at all"}


def made_at_import(nodes):
    """Calls that make something to wait for while the module is imported; not those of `if __name__ == "__main__"`."""
    for node in nodes:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            defaults = [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
            yield from made_at_import([*defaults, *getattr(node, "decorator_list", ())])
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in WAITED_FOR:
            yield ast.unparse(node)
        yield from made_at_import(ast.iter_child_nodes(node))


def test_no_lock_is_made_while_a_module_is_imported():
    """The master may import it before the worker's gevent replaces `threading`. Such a lock is one of real threads:
    waiting for it blocks the hub, so the greenlet that holds it never runs to release it."""
    assert not offenders(lambda module: made_at_import([TREES[module]]), MODULES.keys() - NEVER_WAITED_FOR.keys())


def test_a_lock_made_at_import_would_be_seen():
    tree = ast.parse(
        "import threading\nfrom queue import Queue\na = threading.Lock()\nclass B:\n    c = Queue()\n"
        "def f(d=threading.Event()):\n    return threading.Lock()"
    )
    assert list(made_at_import([tree])) == ["threading.Lock()", "Queue()", "threading.Event()"]


def test_no_class_name_is_used_twice():
    """`Meta` is marshmallow's name for a class inside a schema."""
    found: dict[str, list[str]] = {}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Meta":
                found.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in found.items() if len(modules) > 1}


PATCHED = re.compile(r"""setattr\((?:[\w.()]+, ["']|f?["'][\w.{}]+\.)_?[A-Z][A-Z_]+["']""")


def test_constants_that_tests_change_are_constructor_arguments():
    tests = (PACKAGE.parent / "tests").rglob("*.py")
    assert not [match for path in tests for match in PATCHED.findall(path.read_text("utf-8"))]
