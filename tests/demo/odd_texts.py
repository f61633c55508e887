"""Texts that tokenizers disagree about, and the corpus's own."""

from itertools import islice

from llamasrv.demo.corpus import documents

ODD = [
    "",
    " ",
    "  two  spaces   three    ",
    "tab\tand\ttabs\t\t",
    "line\nline\n\nline\n\n\n",
    "carriage\r\nreturn\r\n\r\nmixed\n\r\r",
    " \n \n  \n",
    "trailing space \nand then",
    "don't I'll WE'VE you're 'S 's 'tis",
    "12345 1,234.50 0x1F ½ ² Ⅷ ٣٤ 七",
    "naïve café Ünïcödé Łódź Ångström",
    "e\u0301 combining \u0308\u0301 marks n\u0303",
    "Привет, мир! Здравствуйте",
    "こんにちは世界 你好,世界。안녕하세요",
    "שלום עולם مرحبا بالعالم",
    "🙂 👩‍👩‍👧 🇩🇪 ✈️ 🏳️‍🌈 1️⃣",
    "zero\u200bwidth\u200djoin\ufeffbom\u00a0nbsp\u2003em\u3000wide",
    "\u2028line separator\u2029paragraph\u0085next",
    "\ufb01ligature \u01c5 titlecase \u1e9e ẞß",
    "math ∑∫√≈≠ → ← ⇒ €£¥ ©®™ §¶ „“ ‚‘ «»",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓂀 plane one",
    "control \x01\x02\x1b[0m\x7f bytes",
    "snake_case camelCase kebab-case SCREAMING __dunder__ a.b.c",
    '{"name": "get_weather", "arguments": {"city": "São Paulo", "n": -1.5e10}}',
    "def f(x):\n    return x ** 2  # comment\n\n\tif x:\n\t\tpass\n",
    "https://example.com/a?b=c&d=%20#e user@example.com",
    "!!! ??? ... --- *** ___ ((())) [[]] {{}} <<>> ``` ~~~",
    "<tool_call>\nno\n</tool_call> <think> </think> <|im_start|>user\n<|im_end|>",
    "<|im_sta <|im_start <tool_ call> </think",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 3,
    "Zażółć gęślą jaźń, Příliš žluťoučký kůň, Ξεσκεπάζω",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 นะ हिन्दी में বাংলা தமிழ்",
]


def corpus_texts():
    """One document of many, both sides of the split."""
    for held_out in (False, True):
        for document in islice(documents(11, held_out=held_out), 120):
            yield document.given + document.expected


def letters():
    """Every character of a larger sample, each alone and all together."""
    found = set()
    for document in islice(documents(12), 2000):
        found |= set(document.given + document.expected)
    return [*sorted(found), "".join(sorted(found))]
