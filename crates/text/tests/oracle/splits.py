"""Writes tests/data/splits.json: how the `regex` module cuts difficult texts by each family's expression.

Run with the PyPI package `regex`: python3 splits.py > ../data/splits.json
"""
import itertools
import json
import random

import regex

# `\s` is spelt out so that it means Unicode's White_Space, not Python's idea of it.
S, NS = r"\p{White_Space}", r"\P{White_Space}"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\p{{White_Space}}\p{{L}}\p{{N}}]+|{S}+(?!{NS})|{S}+"
ANY = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"


def llama(numbers):
    return (rf"(?:{ANY})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\p{{White_Space}}\p{{L}}\p{{N}}]+[\r\n]*"
            rf"|{S}*[\r\n]+|{S}+(?!{NS})|{S}+")


# A family is a list of expressions; each cuts the pieces of the one before into matches and what is between.
FAMILIES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "qwen2": [llama(r"\p{N}")],
    "llama-bpe": [llama(r"\p{N}{1,3}")],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}


def cut(pattern, piece):
    at = 0
    for match in pattern.finditer(piece):
        if match.start() > at:
            yield piece[at:match.start()]
        if match.end() > match.start():
            yield match.group()
        at = match.end()
    if at < len(piece):
        yield piece[at:]


def split(family, text):
    pieces = [text] if text else []
    for pattern in family:
        pieces = [part for piece in pieces for part in cut(pattern, piece)]
    assert "".join(pieces) == text
    return pieces


FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t", " \n", "\n ", " \n \n  x", "x \n", "x  ", "a  b",
    "a\tb", "a\t b", "a \tb", "\tx", "\t x", " \tx", "\t\tx", "x\n\n\ny", "x \r\n y", "  \r  \n  z", "\u00a0x", "x\u00a0", "\u00a0\u00a0x",
    "\u3000漢字", "\u2003\u2003x", "\u200bx", "\u2028x\u2029", "\x85x", "\x1cx\x1d", "\x00\x01\x02", "\x7f\x1b[0m",
    "'s", "'S", "I'm", "I'M", "don't", "DON'T", "we'll we'LL we'Ll", "they're'RE", "''s", "'sx", "'rex", "'r", "'l", "'v", "' s",
    "x'", "'\n", "'d've", "\u2019s it\u2019s", "'\u017f", "'\u212a", "l'\u00e9t\u00e9", "'1", "'\u0301s",
    "0", "12", "123", "1234", "12345", "123456", "1234567", " 1", "  12", "a1b22c333d4444", "3.14159", "1,000,000", "-42", "0x1F", "1e-9",
    "\u0660\u0661\u0662\u0663", "\u0967\u0968\u0969\u096a", "\u2160\u2161\u2162\u2163", "\u00bd\u00b2\u00b3", "\uff11\uff12\uff13\uff14", "\U0001d7d8\U0001d7d9", "12\u0663", "\u00b2x",
    "e\u0301", "e\u0301e\u0301", "\u0301", "\u0301\u0301x", " \u0301x", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u1780\u17b6\u1793\u17cb",
    "\u5f20\u4e09\u674e\u56db", "\u732b\u304c\u7a93\u306e\u5916", "\uc548\ub155\ud558\uc138\uc694", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a", "\u03a3\u03ae\u03bc\u03b5\u03c1\u03b1", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1ef\U0001f1f5", "\u2764\ufe0f x", "\U0001f600\U0001f600a", " \U0001f600", "  \U0001f600",
    "!", "!!", " !", "  !!", "!\n", "!\n\n", "!\r\nx", "! \n", "...\n...", "-->", "==", "a==b", "a == b", "x+=1;", "<|im_end|>", "</s>", "{{x}}", "`x`", "~^|$+<=>", "a_b", "__init__",
    "https://example.org/a?b=c&d=1#e", "foo(bar, baz);\n    return 0;\n}\n", "def f(x):\n\treturn x ** 2\n", "\u00ab\u00bb\u201c\u201d\u2018\u2019\u2014\u2026\u00bf\u00a1\u3002\uff0c\u3001", "\u20ac\u00a5\u00a3\u00a9\u00ae\u2122",
    "\ue000\ufffd\ufdd0", "\U000f0000", "\u0378", "\ufeffx", "x\u00ady", "\U0001f9d1\U0001f3fd",
    "Hello world", " Hello world", "Hello  world", "Hello\nworld", "\u01c5\u02b0\u00aa", "\u16ee\u3007", "\u2460\u2474", "Stra\u00dfe stra\u00dfe",
]
ATOMS = [" ", "  ", "\n", "\r", "\r\n", "\t", "\u00a0", "\u3000", "'", "'s", "'LL", "a", "Z", "\u00e9", "\u6f22", "\u0301", "1", "23", "456", "\u0664", "\u00bd",
         "!", "-", "$", "`", "\u3002", "\U0001f642", "\u200d", "\x00", "_"]


def texts():
    yield from FIXED
    yield from ("".join(pair) for pair in itertools.product(ATOMS, repeat=2))
    rng = random.Random(20240607)
    for _ in range(600):
        yield "".join(rng.choice(ATOMS) for _ in range(rng.randint(3, 14)))


def main():
    families = {name: [regex.compile(p) for p in patterns] for name, patterns in FAMILIES.items()}
    cases = []
    for text in dict.fromkeys(texts()):
        # Pieces as lengths in characters: short, and they can't disagree about the text.
        cases.append([text, {name: [len(p) for p in split(f, text)] for name, f in families.items()}])
    print("[")
    print(",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases))
    print("]")


main()
