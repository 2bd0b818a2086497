"""Hypothesis strategies for what `plain` lets through."""

from unicodedata import normalize

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
NFC_TEXT = TEXT.map(lambda text: normalize("NFC", text))
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-(2.0**53) + 1, 2.0**53 - 1, allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NFC_TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NFC_TEXT, VALUES, max_size=5)


def shuffled(value, random):
    """Copy a value with the keys of every object in another insertion order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    if isinstance(value, list):
        return [shuffled(item, random) for item in value]
    return value


def decomposed(value):
    """Copy a value with every string and key in NFD, which is the same text in another form."""
    if isinstance(value, str):
        return normalize("NFD", value)
    if isinstance(value, dict):
        return {decomposed(key): decomposed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decomposed(item) for item in value]
    return value


def same_json(one, other):
    """Tell whether two values are the same JSON: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return one == other
