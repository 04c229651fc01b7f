"""Writes tests/data/hostile-ids.txt: hashes of the ids that the model makers' own libraries give for the texts of
hostile.json, a hash for 100 texts.

`sentencepiece` for SentencePiece's BPE and `tokenizers` for all others, built from the vocabularies of GGUF files.
Run with the PyPI packages `tokenizers`, `sentencepiece`, `regex` and `gguf`: `python3 ids.py FILE.gguf ...`, or
`python3 ids.py --show FILE.gguf` for the ids themselves.
"""
import json
import pathlib
import sys

import gguf
from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import families
import fnv

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# The family of a value of `tokenizer.ggml.pre`, where they are not the same word.
FAMILY = {"command-r": "smollm", "starcoder": "smollm", "refact": "smollm", "mpt": "gpt-2", "llama3": "llama-bpe"}
WHOLE_FIRST = {"llama-bpe", "tekken", "glm4"}


class Vocabulary:
    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        read = lambda key, default=None: fields[key].contents() if key in fields else default
        self.read = lambda key, default=None: read("tokenizer.ggml." + key, default)
        self.tokens = self.read("tokens")
        self.kinds = self.read("token_type", [NORMAL] * len(self.tokens))
        # Ends of turns are control tokens even where a file calls them otherwise; the tag of HTML is none.
        self.ids = {text: id for id, text in enumerate(self.tokens)}
        for text in ["</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<eos>"]:
            tag = text == "</s>" and self.kinds[self.ids.get("<s>", 0)] in (NORMAL, USER_DEFINED) and "<s>" in self.ids
            if text in self.ids and not tag:
                self.kinds[self.ids[text]] = CONTROL

    def of_kind(self, *kinds):
        return [text for text, kind in zip(self.tokens, self.kinds) if kind in kinds]


def bpe(vocab):
    pre, merges = vocab.read("pre"), [tuple(merge.split(" ", 1)) for merge in vocab.read("merges")]
    ids = {text: id for text, id in vocab.ids.items() if vocab.kinds[id] not in (CONTROL, UNKNOWN)}
    if vocab.read("model") == "gemma4":
        tokenizer = Tokenizer(models.BPE(vocab=vocab.ids, merges=merges, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        # Runs of line feeds are tokens as a whole; there is a token for every one that is met.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    else:
        needed = {text for l, r in merges for text in (l, r, l + r)}
        assert needed <= set(ids), "merges of other tokens"
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre in WHOLE_FIRST))
        onig = lambda pattern: Regex(pattern.replace(r"\p{White_Space}", r"\s").replace(r"\P{White_Space}", r"\S"))
        cuts = [pre_tokenizers.Split(onig(p), "isolated") for p in families.FAMILIES[FAMILY.get(pre, pre)]]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in vocab.of_kind(USER_DEFINED)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def processor(vocab, model_type):
    proto = pb.ModelProto()
    kinds = pb.ModelProto.SentencePiece
    types = {NORMAL: kinds.NORMAL, UNKNOWN: kinds.UNKNOWN, CONTROL: kinds.CONTROL, USER_DEFINED: kinds.USER_DEFINED,
             UNUSED: kinds.UNUSED, BYTE: kinds.BYTE}
    for text, score, kind in zip(vocab.tokens, vocab.read("scores"), vocab.kinds):
        spelt = text.replace(" ", "\u2581") if kind == USER_DEFINED else text
        proto.pieces.add(piece=spelt, score=score, type=types[kind])
    unknown = vocab.read("unknown_token_id", 0)
    # One token is the unknown one, and only one; files may call it a control token, and padding unknown.
    for id, piece in enumerate(proto.pieces):
        if id == unknown:
            piece.type = kinds.UNKNOWN
        elif piece.type == kinds.UNKNOWN:
            piece.type = kinds.CONTROL
    spec, bpe = proto.trainer_spec, model_type == pb.TrainerSpec.BPE
    spec.model_type, spec.byte_fallback, spec.unk_id = model_type, BYTE in vocab.kinds, unknown
    spec.bos_id = spec.eos_id = spec.pad_id = -1
    spec.unk_piece = vocab.tokens[unknown]
    normal = proto.normalizer_spec
    normal.add_dummy_prefix = vocab.read("add_space_prefix", bpe)
    normal.remove_extra_whitespaces = not bpe and vocab.read("remove_extra_whitespaces", False)
    normal.precompiled_charsmap = bytes(byte % 256 for byte in vocab.read("precompiled_charsmap", []))
    return SentencePieceProcessor(model_proto=proto.SerializeToString())


def sentencepiece(vocab):
    return processor(vocab, pb.TrainerSpec.BPE).encode


def unigram(vocab):
    """`sentencepiece` normalises, and `tokenizers` looks for the best sequence: in double precision, as all others do."""
    pieces = [(text, 0.0 if kind == USER_DEFINED else score if kind in (NORMAL, UNUSED) else -1e9)
              for text, score, kind in zip(vocab.tokens, vocab.read("scores"), vocab.kinds)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=vocab.read("unknown_token_id")))
    normalise = processor(vocab, pb.TrainerSpec.UNIGRAM).normalize
    return lambda text: tokenizer.encode(normalise(text), add_special_tokens=False).ids


def wordpiece(vocab):
    spell = lambda text, kind: text if kind != NORMAL else text[1:] if text.startswith("\u2581") else "##" + text
    ids = {spell(text, kind): id for id, (text, kind) in enumerate(zip(vocab.tokens, vocab.kinds))}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocab.read("normalizer.lowercase", True))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def encoder(vocab):
    return {
        "gpt2": bpe,
        "gemma4": bpe,
        "llama": sentencepiece,
        "t5": unigram,
        "bert": wordpiece,
    }[vocab.read("model")](vocab)


def main():
    texts = json.loads((DATA / "hostile.json").read_text())
    if sys.argv[1] == "--show":
        encode = encoder(Vocabulary(sys.argv[2]))
        for text in texts:
            print(json.dumps([text, encode(text)]))
        return
    with (DATA / "hostile-ids.txt").open("w") as out:
        for path in sys.argv[1:]:
            encode = encoder(Vocabulary(path))
            print(pathlib.Path(path).stem, *fnv.blocks([encode(text) for text in texts]), file=out)


main()
