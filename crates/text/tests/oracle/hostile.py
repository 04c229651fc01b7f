"""Writes tests/data/hostile.json, texts that tokenizers trip over, and hostile-splits.txt: hashes of the lengths of the
pieces into which the `regex` module cuts them by each family's expressions, a hash for 100 texts.

Run with the PyPI package `regex`: `python3 hostile.py`; `python3 hostile.py FAMILY BLOCK` shows the pieces of 100 texts.
"""
import itertools
import json
import pathlib
import random
import sys

import families
import fnv

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"

# Characters are of Unicode 12 or older, or still unassigned in 17, so that the engines' versions do not matter.
KINDS = {
    "letters": list("abcdeghlmrstvyzABDIMSTZ\u00e9\u00df\u00c9\u00d1\u01c5\u02b0\u00aa\u03b1\u03a3\u0416\u044f\u05d0\u0627\u0939\u0e01\u1780\u10d0\u1c90\uff21\uff41\u1d00"),
    "words": ["Hello", "HELLO", "hello", "iPhone", "McDonald", "don't", "DON'T", "we'll", "I'VE", "d'\u00e9t\u00e9", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627", "na\u00efve", "e\u0301te\u0301",
              "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "camelCaseWord", "snake_case", "ABCdef", "\u00c0\u00c9\u00ce\u00f5", "\u01c4\u01c5\u01c6"],
    "east": ["\u6f22", "\u5b57", "\u4e00", "\u9fa5", "\u9fff", "\u3400", "\U00020000", "\uf900", "\u3005", "\u3007", "\u3021", "\u2e80", "\u3042", "\u30a2", "\uff71", "\u3105", "\uac00", "\ud55c\uae00", "\u1100", "\u3131", "\u0e81",
             "\u1000", "\uaa60", "\u3001", "\u3002", "\uff0c", "\uff01", "\u2026", "\u300c", "\ufe30", "\u3000"],
    "digits": ["0", "1", "12", "123", "1234", "12345678", "\u0661", "\u0662\u0663\u0664", "\u0967\u0968", "\u00bd", "\u00b2", "\u2160", "\u2460", "\uff11\uff12\uff13\uff14", "\U0001d7d8", "3.14", "1,000", "0x1F", "-1e9", "\u09f4"],
    "space": [" ", "  ", "    ", "     ", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\t", "\t\t", "\u00a0", "\u2003", "\u2028", "\u2029", "\x0b", "\x0c", " \n ", "\x85",
              "\u3000", "\u1680", "\u202f", "\u205f"],
    "marks": ["\u0301", "\u0308\u0301", "\u0327", "\u094d", "\u0e31", "\u20dd", "\u0345", "\ufe0f", "\u3099", "\u064b", "\u0488", "\u05b0", "\u302a", "\u1dc0"],
    "symbols": list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["\u00a3", "\u20ac", "\u00a9", "\u00b0", "\u00b1", "\u00d7", "\u2190", "\u2200", "\u2500", "\u25cf", "\u2605", "\u2701", "\u00b4", "\u00a8",
                "\u2018", "\u2019", "\u201c", "\u201d", "\u2013", "\u2014", "\u00ab", "\u00bf", "\u0964", "\u06d4", "\u060c", "\u203f", "\uff3f", "!!", "...", "--", "://", "+=", "/*", "*/", "\\n", "//\n", "/\n"],
    "controls": ["\x00", "\x01", "\x1b[0m", "\x7f", "\x1c", "\x9f", "\u200b", "\u200d", "\u200c", "\u00ad", "\u2060", "\ufeff", "\u202e", "\u061c", "\U000e0001", "\U000e0041", "\u180e"],
    "odd": ["\u0378", "\uffff", "\ufdd0", "\U00050000", "\U000e01ff", "\ufffd", "\ufffc", "\ue000", "\uf8ff", "\U000f0000", "\U0010fffd", "\u2581", "\u2581\u2581", "\u0120", "\u010a", "\u0100", "\u0130",
            "\u0149", "\ufb01", "\ufb13", "\u1e9e", "\u0390", "\u1f80", "\u2126", "\u212b", "\u24d0", "\U0001f130"],
    "emoji": ["\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1ef\U0001f1f5", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f9d1\U0001f3fd", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u263a", "\U0001f600\U0001f600"],
    "look-alikes": ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "[CLS]", "[SEP]", "[UNK]", "<unk>", "<pad>", "<bos>", "<eos>", "<start_of_turn>", "<|", "|>", "<0x0A>", "<0xFF>",
                    "<0x", "[INST]", "<|eot_id|>", "<sentinel:12>", "<sentinel:>", "IMGIMGABCZ", "IMGIMGABCDEZ", "<unused1>", "##ing", "\u2581the", "<mask>", "<tool_call>",
                    "<|user|>", "<extra_id_0>"],
}


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


def fixed():
    """Texts thought of one by one, all pairs of atoms, and mixtures of them."""
    yield from FIXED
    yield from ("".join(pair) for pair in itertools.product(ATOMS, repeat=2))
    rng = random.Random(20240607)
    for _ in range(600):
        yield "".join(rng.choice(ATOMS) for _ in range(rng.randint(3, 14)))


def mixed():
    """2,000 texts of many kinds of characters."""
    rng = random.Random(97)
    kinds = list(KINDS.values())
    seen = set()
    while len(seen) < 2000:
        # Some texts are of one or two kinds, some of all.
        chosen = rng.sample(kinds, rng.choice([1, 2, 2, 3, len(kinds)]))
        atoms = [rng.choice(rng.choice(chosen)) for _ in range(rng.choice([1, 2, 3, 4, 5, 6, 8, 10, 14]))]
        if rng.random() < 0.1:
            atoms[rng.randrange(len(atoms))] *= rng.choice([3, 7, 17, 40])
        text = "".join(atoms)
        if text not in seen:
            seen.add(text)
            yield text


def main():
    rows = list(dict.fromkeys(itertools.chain(fixed(), mixed())))
    if len(sys.argv) == 3:
        patterns, start = families.compiled()[sys.argv[1]], 100 * int(sys.argv[2])
        for text in rows[start:start + 100]:
            print(ascii(text), ascii(families.split(patterns, text)))
        return
    lines = ",\n".join(json.dumps(text, ensure_ascii=True) for text in rows)
    (DATA / "hostile.json").write_text(f"[\n{lines}\n]\n")
    with (DATA / "hostile-splits.txt").open("w") as out:
        for name, patterns in families.compiled().items():
            lengths = [[len(piece) for piece in families.split(patterns, text)] for text in rows]
            print(name, *fnv.blocks(lengths), file=out)


if __name__ == "__main__":
    main()
