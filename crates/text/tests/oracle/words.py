"""Writes tests/data/words.json: a vocabulary for `tokenizer.ggml.model` = `whitespace`, and hashes of the ids that the
PyPI package `tokenizers` gives with it for the texts of hostile.json, a hash for 100 texts.

llama.cpp's converter writes this model for a BPE with the pre-tokenizer `Whitespace`, which cuts words from punctuation,
too; merges that were learnt with it never join the two, so that cutting at white space alone gives the same ids.
"""
import json
import pathlib

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import families
import fnv

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def main():
    texts = json.loads((DATA / "hostile.json").read_text())
    patterns = families.compiled()["whitespace"]
    splitter = pre_tokenizers.WhitespaceSplit()
    for text in texts:
        # Python's idea of white space has four control characters more than Unicode's.
        is_word = lambda piece: not piece[0].isspace() or piece[0] in "\x1c\x1d\x1e\x1f"
        words = [piece for piece in families.split(patterns, text) if is_word(piece)]
        assert words == [word for word, _ in splitter.pre_tokenize_str(text)], text
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=1200, limit_alphabet=300, special_tokens=["<unk>"], show_progress=False)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    # Without the trainer's special token, which would be found in texts.
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # llama.cpp leaves out what has no token.
    unknown = tokenizer.token_to_id("<unk>")
    ids = lambda text: [id for id in tokenizer.encode(text).ids if id != unknown]
    out = {
        "tokens": sorted(model["vocab"], key=model["vocab"].get),
        "merges": [" ".join(pair) for pair in merges],
        "ids": " ".join(fnv.blocks([ids(text) for text in texts])),
    }
    tokenizer.normalizer = normalizers.Lowercase()
    out["lowercase"] = " ".join(fnv.blocks([ids(text) for text in texts]))
    (DATA / "words.json").write_text(json.dumps(out, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
