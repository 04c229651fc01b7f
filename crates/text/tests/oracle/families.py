"""The published regular expressions of the tokenizer families, for the PyPI package `regex`, and how they cut.

A family is a list of expressions; each cuts the pieces of the one before into matches and what is between.
"""
import regex

# `\s` is spelt out so that it means Unicode's White_Space, not Python's idea of it.
S, NS = r"\p{White_Space}", r"\P{White_Space}"
SC = r"\p{White_Space}"
ANY = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{SC}\p{{L}}\p{{N}}]+|{S}+(?!{NS})|{S}+"
# Where a family's expression was published without the last alternative, what it would match is left between matches.
GPT2_OPEN = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{SC}\p{{L}}\p{{N}}]+|{S}+(?!{NS})"
ENDS = rf"{S}*[\r\n]+|{S}+(?!{NS})|{S}+"
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# \w of the engine that the package `tokenizers` uses.
WORD = r"[\p{Alphabetic}\p{M}\p{N}\p{Pc}]"


def llama(numbers, contractions=f"(?:{ANY})|", others=r"[\r\n]*"):
    return (rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^{SC}\p{{L}}\p{{N}}]+{others}|{ENDS}")


def cased(numbers, contraction=f"(?:{ANY})?", but=""):
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (rf"{before}{upper}*{lower}+{contraction}|{before}{upper}+{lower}*{contraction}|{numbers}"
            rf"| ?[^{SC}\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}")


ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
MARKED = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
DEEPSEEK3 = rf"{ASCII_WORD}|{MARKED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{ENDS}"
BLOOM = " ?[^(" + SC + "|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
STEPS = "".join(rf"{S}{{{n}}}(?!{NS})|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + rf"{S}{{1,2}}(?!{NS})|{S}{{1}}"


def deepseek_letters():
    return (
        "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
        "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
        "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
        "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
        "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
        "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
        "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
        "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
        "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
        "\U000118a0-\U000118df\U0001e900-\U0001e943")


FAMILIES = {
    "whitespace": [rf"{NS}+"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "qwen2": [llama(r"\p{N}")],
    "llama-bpe": [llama(r"\p{N}{1,3}")],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2_OPEN, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "qwen35": [rf"(?:{ANY})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^{SC}\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{ENDS}"],
    "minicpm5": [r"\p{N}{1,3}", llama(r"\p{N}+")],
    "jais-2": [llama(r"\p{N}{1,3}").rsplit("|", 2)[0] + "|" + STEPS],
    "ufakzeka": [llama(r"\p{N}", contractions="")],
    "seed-coder": [rf"(?:{ANY})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^{SC}\p{{L}}\p{{N}}\r\n]+|{ENDS}"],
    "laguna": [r"[^\n]+|[\n]+", llama(r"\p{N}")],
    "bailingmoe": [rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}"
                   rf"| ?[^{SC}\p{{L}}\p{{N}}]++[\r\n]*|{S}*[\r\n]|{S}+(?!{NS})|{S}+"],
    "exaone-moe": [rf"(?:{ANY})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                   rf"| ?[^{SC}\p{{L}}\p{{N}}]+[\r\n/]?|{S}*[\r\n]|{S}+(?!{NS})|{S}+"],
    "gpt-4o": [cased(r"\p{N}{1,3}")],
    "tekken": [cased(r"\p{N}", contraction="")],
    "tiny_aya": [rf"\p{{Nd}}{{1,3}}(?=(?:\p{{Nd}}{{3}})*(?!{WORD}))", cased(r"\p{N}{1,3}")],
    "youtu": ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
              "|[\u3105-\u312f]+|" + CJK, cased(r"\p{N}")],
    "kimi-k2": [r"(?V1)[\p{Han}]+|" + cased(r"\p{N}{1,3}", but=r"&&[^\p{Han}]").replace("[\\r\\n/]*", "[\\r\\n]*")],
    "deepseek-llm": [r"[\r\n]", rf"{S}?[{deepseek_letters()}]+",
                     rf"{S}?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", rf"{S}+\Z", EAST, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", rf"{S}?\p{{L}}+", rf"{S}?\p{{P}}+", EAST, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, DEEPSEEK3],
    "spark2_5": [r"\p{N}{1,3}", CJK, rf"{ASCII_WORD}|{MARKED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{S}+(?!{NS})|{S}+", r"\p{N}"],
    # Threes from the right, however the word goes on.
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
              "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
              "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+", DEEPSEEK3],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2_OPEN, r"[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "gemma4": [r"[^\n]+|[\n]+"],
    "superbpe": [r"\p{N}+", r"(?=(\p{Nd}{3})+(?!\p{Nd}))"],
    "chameleon": [r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2_OPEN],
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


def compiled():
    return {name: [regex.compile(pattern) for pattern in patterns] for name, patterns in FAMILIES.items()}


def split(patterns, text):
    pieces = [text] if text else []
    for pattern in patterns:
        pieces = [part for piece in pieces for part in cut(pattern, piece)]
    assert "".join(pieces) == text
    return pieces
