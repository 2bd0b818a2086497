"""The catalogues have every text of the package, and are compiled."""

import re

import pytest

pytest.importorskip("babel", reason="Babel reads the catalogues: pip install babel")

from tests import messages

PLACEHOLDER = re.compile(r"\{\w*\}|%\(\w+\)s|</?\w+>")
LANGUAGES = messages.languages()
PHYSICAL = re.compile(
    r"(?:margin|padding|border)-(?:left|right)|text-align: ?(?:left|right)|float: ?(?:left|right)|[{;] ?(?:left|right):"
)
FOUR_SIDES = re.compile(r"(?:margin|padding): ?([^\s;]+) ([^\s;]+) ([^\s;]+) ([^\s;}]+) ?[;}]")


def strings(message):
    return tuple(message.string) if isinstance(message.string, (tuple, list)) else (message.string,)


def ids(message):
    return tuple(message.id) if isinstance(message.id, (tuple, list)) else (message.id,)


def test_german_and_hebrew_are_shipped():
    assert {"de", "he"} <= set(LANGUAGES)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_has_a_translation(language):
    stored = {str(message.id) for message in messages.catalogue(language) if message.id}
    wanted = messages.template()
    assert {str(message.id) for message in wanted if message.id} == stored  # else: make messages
    found = messages.catalogue(language)
    assert [each.id for each in found if each.id and (each.fuzzy or not all(strings(each)))] == []


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_placeholders_of_their_texts(language):
    wrong = []
    for message in messages.catalogue(language):
        if message.id:
            first, *others = [sorted(PLACEHOLDER.findall(text)) for text in strings(message)]
            one, *_, many = [sorted(PLACEHOLDER.findall(text)) for text in ids(message) * 2]
            if first != one or any(each != many for each in others):
                wrong.append(message.id)
    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_is_in_step(language):
    # Not byte by byte: Babel writes its own version into what it compiles.
    source, compiled = messages.catalogue(language), messages.compiled(language)
    assert {ids(each): strings(each) for each in source} == {ids(each): strings(each) for each in compiled}
    assert source.plural_forms == compiled.plural_forms  # else: make messages


def test_styles_and_templates_name_no_side_of_the_screen():
    files = [
        *messages.PACKAGE.rglob("*.css"),
        *messages.PACKAGE.rglob("*.html"),
        *messages.PACKAGE.rglob("static/**/*.js"),
    ]
    found = [(path.name, side[0]) for path in files for side in PHYSICAL.finditer(path.read_text())]
    found += [
        (path.name, four[0]) for path in files for four in FOUR_SIDES.finditer(path.read_text()) if four[2] != four[4]
    ]
    assert (found, len(files) > 30) == ([], True)
