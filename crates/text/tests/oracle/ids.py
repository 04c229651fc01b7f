"""Writes tests/data/hashes.txt: hashes of the ids that the PyPI package `tokenizers` gives for the texts of splits.json.

Run with the PyPI packages `tokenizers` and `gguf`: python3 ids.py NAME=FILE.gguf ... > ../data/hashes.txt
"""
import json
import pathlib
import sys

import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers


def llama(numbers):
    return Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers
                 + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def pre_tokenizer(pre):
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "gpt-2": words,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words]),
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(llama(r"\p{N}"), "isolated"), bytes_only]),
        "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(llama(r"\p{N}{1,3}"), "isolated"), bytes_only]),
    }[pre]


def fnv(numbers):
    value = 0xCBF29CE484222325
    for number in numbers:
        for byte in number.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def main():
    data = pathlib.Path(__file__).resolve().parent.parent / "data"
    texts = [case[0] for case in json.loads((data / "splits.json").read_text())]
    for argument in sys.argv[1:]:
        name, path = argument.split("=")
        fields = gguf.GGUFReader(path).fields
        read = lambda key: fields["tokenizer.ggml." + key].contents()
        merges = [tuple(merge.split(" ")) for merge in read("merges")]
        vocab = {text: id for id, text in enumerate(read("tokens"))}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=read("pre") == "llama-bpe"))
        tokenizer.pre_tokenizer = pre_tokenizer(read("pre"))
        numbers = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            numbers += [len(ids), *ids]
        print(name, f"{fnv(numbers):016x}")


main()
