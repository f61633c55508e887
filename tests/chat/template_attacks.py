"""Templates that would take a server down, each in a process of its own, and what they cost.

python template_attacks.py       prints JSON: name → outcome, seconds of CPU, MiB of memory
"""

from __future__ import annotations

import json
import os
import resource
import sys

from llamasrv.chat import renderer
from llamasrv.chat.renderer import Renderer, TemplateError
from llamasrv.errors import InvalidRequest

MOST_CPU = 60  # seconds; then it is killed
MOST_MEMORY = 6 << 30

BIG = "{% set b = 'x' * 16000000 %}"
NS = "{% set ns = namespace(x=[1], y=[1], t='aaaa', n=7) %}"


def often(statement: str, turns: int = 60) -> str:
    return f"{{% for i in range({turns}) %}}{statement}{{% endfor %}}"


NESTED = NS + often("{% set ns.x = [ns.x, ns.x] %}") + often("{% set ns.y = [ns.y, ns.y] %}")
DEEP_TUPLE = "{% set ns = namespace(t=(1,)) %}" + often(often("{% set ns.t = (ns.t, i) %}", 1000), 300)

ATTACKS = {
    "a list doubled": NS + often("{% set ns.x = ns.x + ns.x %}", 40),
    "a list extended by itself": "{% set x = [1] %}" + often("{% set _ = x.extend(x) %}", 40),
    "an extended list in a loop": "{% set x = [1] %}" + often("{% set _ = x.extend(range(99999)) %}", 99999),
    "text marked safe, padded": "{{ ('x'|e).ljust(10**9) }}",
    "text marked safe, centred": "{{ ('x'|e).center(10**9) }}",
    "text marked safe, multiplied": "{{ ('x'|e) * 10**9 }}",
    "text marked safe by a block": "{% autoescape true %}{{ ('x'|e).ljust(10**9) }}{% endautoescape %}",
    "a batch that is filled": "{{ [1]|batch(2*10**8, 0)|list|length }}",
    "batches of one": "{{ ('a'*8000000)|batch(1)|list|length }}",
    "many slices": "{{ [1]|slice(10**9, 0)|list|length }}",
    "a power": "{{ 3**20000000 }}",
    "a power of a power": NS + often("{% set ns.n = ns.n ** 9 %}"),
    "products": NS + "{% set ns.n = 3**2000 %}" + often("{% set ns.n = ns.n * ns.n %}", 99),
    "products of what a namespace was made with": "{% set ns=namespace(x=3**4000000) %}" + often("{% set ns.x = ns.x * ns.x %}", 2),
    "sums of numbers": NS + often("{% set ns.n = ns.n + ns.n %}", 99999),
    "a large number in the source": "{{ 0x" + "f" * 900_000 + " // 0x" + "7" * 90_000 + " }}",
    "a large number from a text": "{{ ('f' * 16000000)|int(0, 16) }}",
    "a number rounded to a power": "{{ 5|round(-1000000000) }}",
    "a number rounded up to a power": "{{ 5|round(1000000000, 'ceil') }}",
    "a number as bytes": "{{ (1).to_bytes(1000000000, 'big')|length }}",
    "sorting a large list": "{{ (range(99999)|list * 80)|sort|length }}",
    "sorting one large text often": BIG + "{{ ([b] * 1000)|sort|length }}",
    "unique of one large text": BIG + "{{ ([b] * 1000)|unique|list|length }}",
    "grouping large texts": BIG + "{{ ([[b]] * 1000)|groupby(0)|length }}",
    "a dict of large texts, sorted": BIG + "{{ {'a': b}|dictsort(by='value') }}" * 200,
    "letters of a large text": BIG + "{{ (b|list)|length }}{{ (b|list)|length }}",
    "words of a large text": "{{ ('a ' * 8000000).split()|length }}" * 9,
    "lines of a large text": "{{ ('é\\n' * 5000000).splitlines()|length }}" * 9,
    "a large text split": "{{ ('éa,' * 5000000).split(',')|length }}" * 9,
    "a wide format": "{{ '{:>1000000000}'.format('x') }}",
    "a width that is an argument": "{{ '{:>{}}'.format('x', 1000000000) }}",
    "a conversion with a width that is an argument": "{{ '%*d' | format(1000000000, 1) }}",
    "conversions that repeat": BIG + "{{ ('%(b)s' * 1000000) | format(b=b) }}",
    "many conversions": "{{ ('%%' * 100000000) | format }}",
    "a format that repeats": BIG + "{{ ('{0}' * 1000000).format(b) }}",
    "a format map": "{{ '{a:>1000000000}'.format_map({'a': 'x'}) }}",
    "a format by the operator": "{{ '%1000000000d' % 1 }}",
    "a format by a filter": "{{ '%1000000000d'|format(1) }}",
    "tabs": "{{ ('\\t' * 100000).expandtabs(100000)|length }}",
    "zeros": "{{ 'x'.zfill(10**9)|length }}",
    "a replacement of nothing": BIG + "{{ b.replace('', b)|length }}",
    "a large text joined": BIG + "{{ b.join(['a'] * 1000)|length }}",
    "a generator of large texts joined": BIG + "{{ (range(9999)|map('replace', '', b))|join|length }}",
    "line ends that indent": "{{ ('\\r' * 8000000)|indent(1000)|length }}",
    "indented JSON of a deep list": "{% set x = [1] %}" + NS + often("{% set ns.x = [ns.x, 1, 2] %}", 400)
    + "{{ ns.x|tojson(indent=16) }}" * 300,
    "indented JSON of a number": "{{ 1|tojson(indent=10**9) }}",
    "JSON with wide separators": BIG + "{{ (range(9999)|list)|tojson(separators=(b, b))|length }}",
    "JSON of nested lists": NESTED + "{{ ns.x|tojson|length }}",
    "nested lists, written": NESTED + "{{ ns.x }}",
    "nested lists, made a text": NESTED + "{{ (ns.x|string)|length }}",
    "nested lists, appended to a text": NESTED + "{{ ('' ~ ns.x)|length }}",
    "nested lists, compared": NESTED + "{{ ns.x == ns.y }}",
    "nested lists, ordered": NESTED + "{{ ns.x < ns.y }}",
    "nested lists, looked for": NESTED + "{{ ns.x in [ns.y] }}",
    "nested lists, found in a row": NESTED + "{{ 1 < 2 < 3 and ns.x in [ns.y] in [1] }}",
    "nested lists, tested": NESTED + "{{ ns.x is eq ns.y }}",
    "nested lists, selected": NESTED + "{{ [ns.x]|select('in', [ns.y])|list|length }}",
    "nested lists, counted": NESTED + "{{ [ns.x].count(ns.y) }}",
    "nested lists, joined": NESTED + "{{ ns.x|join|length }}",
    "nested lists, trimmed": NESTED + "{{ ns.x|trim|length }}",
    "nested lists, raised": NESTED + "{{ raise_exception(ns.x) }}",
    "nested lists inside a namespace": NESTED + "{{ ns }}",
    "nested lists that were filled later": NS + "{% set l = [[],[],[],[]] %}"
    + "".join(f"{{% set _ = l[{n % 4}].append(ns.x) %}}{{% set ns.x = [l[{n % 4}]] * 9 %}}" for n in range(30)) + "{{ ns.x }}",
    "wide lists of wide lists": NS + often("{% set ns.x = [ns.x] * 1000 %}", 5) + "{{ ns.x|tojson|length }}",
    "a deep tuple as a key": DEEP_TUPLE + "{{ {ns.t: 1}|length }}",
    "a deep tuple, looked up": DEEP_TUPLE + "{{ {1: 2}[ns.t] }}",
    "a deep tuple, got": DEEP_TUPLE + "{{ {1: 2}.get(ns.t) }}",
    "a deep tuple in a dict": DEEP_TUPLE + "{{ ns.t in {1: 2} }}",
    "a deep tuple, made a dict": DEEP_TUPLE + "{{ dict([(ns.t, 1)])|length }}",
    "tuples of one tuple as a key": "{% set ns = namespace(t=(1,)) %}" + often("{% set ns.t = (ns.t, ns.t) %}") + "{{ {ns.t: 1} }}",
    "arguments of a macro as a key": "{% set ns = namespace(t=(1,)) %}{% macro m() %}{% set ns.t = varargs %}{% endmacro %}"
    + often("{{ m(ns.t, ns.t) }}") + "{{ {ns.t: 1} }}",
    "slices that are kept": BIG + NS + often("{% set ns.x = ns.x + [b[i:]] %}", 9999),
    "slices in a loop": BIG + often(often("{% set _ = b[1:] %}", 9999), 9999),
    "empty loops": often(often("", 99999), 99999),
    "a loop in a loop in a loop": often(often(often(often("", 60), 60), 60), 60),
    "a large literal in a loop": often("{% set _ = [" + "1," * 20_000 + "] %}", 99999),
    "large dicts in a loop": often("{% set _ = {" + ",".join(f"'{n}': i" for n in range(5_000)) + "} %}", 99999),
    "many dicts that are kept": "{% set l = [] %}"
    + often(often("{% set _ = l.append({'a': i, 'b': [i], 'c': {'d': i}}) %}", 99999), 999),
    "recursive loops": "{% for a in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "a recursive loop over more": "{% for a in [[1]] recursive %}{% if loop.depth < 9 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "macros that call themselves": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "macros that write twice what they call": "{% macro m(n) %}{% if n %}{% set x = m(n - 1) %}{{ x }}{{ x }}{% else %}xxxx{% endif %}{% endmacro %}{{ m(60)|length }}",
    "call blocks": "{% macro m(n) %}{% if n %}{% call m(n - 1) %}x{% endcall %}{% call m(n - 1) %}x{% endcall %}{{ caller() if caller }}{% endif %}{% endmacro %}{{ m(60) }}",
    "blocks that show themselves": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "output without an end": "{% set c %}" + often("{{ i }}" * 5_000, 99999) + "{% endset %}{{ c|length }}",
    "numbers without an end": "{% set n = 9 ** 1200 %}" + often(often("{{ n }}", 9999), 999),
    "chains of maps": "{{ range(99999)|list" + "|map('string')" * 90 + "|list|length }}",
    "maps that are consumed again": often("{{ range(99999)|map('string')|map('length')|sum }}", 9999),
    "letters stripped": "{{ ('a' * 16000000).strip('b' * 4000000 ~ 'a')|length }}" * 9,
    "letters trimmed": "{{ ('a' * 16000000)|trim('b' * 4000000 ~ 'a')|length }}" * 9,
    "a search from the end": "{{ ('a' * 16000000).rfind('ab' ~ 'a' * 4000000) }}",
    "a split from the end": "{{ ('a' * 16000000).rsplit('ab' ~ 'a' * 4000000)|length }}",
    "JSON of brackets, read": "{{ ('[' ~ '[],' * 5000000 ~ '1]')|from_json|length }}" * 9,
    "a cycler of nested tuples": "{% set ns = namespace(t=(1,)) %}" + often("{% set ns.t = cycler(ns.t, ns.t).items %}") + "{{ {ns.t: 1} }}",
    "a dict made in a loop": NS + often("{% set ns.x = dict(ns.x, **{'k' ~ i: ns.x}) if i else dict() %}", 99999),
    "a joiner of a large text": BIG + "{% set j = joiner(b) %}{{ j() }}" + often("{{ j() }}", 99),
    "text that doubles": NS + often("{% set ns.t = ns.t ~ ns.t %}"),
    "text that doubles by a sum": NS + often("{% set ns.t = ns.t + ns.t %}"),
    "wide letters that are kept": "{% set b = '\U0001f600' * 8000000 %}" + NS + often("{% set ns.x = ns.x + [b ~ i] %}", 999),
    "text that grows when escaped": BIG.replace("x", "&") + "{{ b|e|length }}",
    "an error message": BIG + "{{ raise_exception(b) }}",
    "an error about a large key": BIG + "{{ {}[b].x }}",
}  # fmt: skip
"""By name. Each costs gigabytes or minutes where it is not bounded."""


def outcome(source: str) -> str:
    """Renders with all that a rendering may spend, as a request would, but for its time: that runs out as surely after a
    fiftieth of it. ATTACK_SECONDS=5 for the whole."""
    renderer.MAX_SECONDS = float(os.environ.get("ATTACK_SECONDS", "0.1"))
    try:
        template = Renderer(source)
        return f"{len(template.render([{'role': 'user', 'content': 'Hi'}]))} characters"
    except (InvalidRequest, TemplateError) as error:
        return f"{type(error).__name__} {str(error)[:200]} ({len(str(error))} characters)"


def measured(source: str) -> tuple[str, float, float]:
    """Outcome, seconds of CPU, MiB beyond what there was."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = outcome(source)
        except BaseException as error:
            found = f"died of {type(error).__name__}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        os.write(writer, json.dumps([found, grown]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    _, status, used = os.wait4(child, 0)
    found, grown = json.loads(said) if said else (f"killed by signal {os.WTERMSIG(status)}", 0.0)
    return found, used.ru_utime + used.ru_stime, grown


if __name__ == "__main__":
    chosen = sys.argv[1:] or ATTACKS
    json.dump({name: measured(ATTACKS[name]) for name in chosen}, sys.stdout)
