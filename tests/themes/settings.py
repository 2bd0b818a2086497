"""The settings of the tests under the theme that ``OJS_TEST_THEME`` names."""

import os

from tests.settings import *  # noqa: F403 - all but the apps is the same
from tests.settings import INSTALLED_APPS as APPS

THEME = os.environ["OJS_TEST_THEME"]
INSTALLED_APPS = {
    "unfold": ["unfold", *APPS, "tests.themes.recipe"],
    "unfold without the recipe": ["unfold", *APPS],
    "jazzmin": ["jazzmin", *APPS],
}[THEME]
JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}
JAZZMIN_UI_TWEAKS = {"default_theme_mode": "auto"}
ROOT_URLCONF = "tests.browser.site"  # which has an icon
