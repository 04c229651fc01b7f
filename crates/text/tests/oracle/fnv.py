"""The hash of the fixtures: FNV-1a over numbers, four bytes each."""


def fnv(numbers):
    value = 0xCBF29CE484222325
    for number in numbers:
        for byte in number.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def blocks(rows, size=100):
    """One hash for each `size` rows of numbers; a row's length is hashed with it."""
    for start in range(0, len(rows), size):
        yield f"{fnv([n for row in rows[start:start + size] for n in (len(row), *row)]):016x}"
