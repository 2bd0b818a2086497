"""Where handlers are looked for, and the check that names modules whose handlers nobody finds."""

import sys
from importlib import invalidate_caches

import pytest
from django.test.utils import modify_settings

from django_ojs_unique.checks.modules import check_modules

PLAIN = "from django_ojs_unique import UniquePolicy, job\n@job('TYPE')\ndef send(user_id): ...\n"
DOTTED = (
    "import django_ojs_unique as ojs\nclass Mail:\n    @staticmethod\n    @ojs.job('TYPE')\n    async def send(): ...\n"
)
RENAMED = "from django_ojs_unique import (\n    job as handler,\n)\n@handler('TYPE')\ndef send(): ...\n"
NOT_OURS = "from elsewhere import job\nimport django_ojs_unique\n@job('TYPE')\n@staticmethod\ndef send(): ...\n"
UNUSED = "from django_ojs_unique import job\n@job\ndef send(): ...\njob('TYPE')\n"
BROKEN = "from django_ojs_unique import job\n@job('TYPE')\ndef send(:\n"


@pytest.fixture
def app(tmp_path, monkeypatch, handlers, settings):
    """Install an app whose files are written before, in a project without `OJSBackend`, which imports ``tasks.py``."""
    settings.TASKS = {}
    monkeypatch.syspath_prepend(tmp_path)
    loaded = {*sys.modules}

    def installed(files):
        for path, source in {"__init__": "", **files}.items():
            file = tmp_path / "moving" / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.replace("TYPE", f"moving.{file.stem}"))
        invalidate_caches()
        return modify_settings(INSTALLED_APPS={"append": "moving"})

    yield installed
    for name in {*sys.modules} - loaded:
        if name.partition(".")[0] == "moving":
            del sys.modules[name]


def named():
    return [message.msg.partition("jobs: ")[2].rstrip(".") for message in check_modules()]


def test_handlers_are_found_in_jobs_only(app, handlers):
    with app({"jobs": PLAIN, "tasks": PLAIN}):
        assert "moving.jobs" in handlers
        assert "moving.tasks" not in handlers
        (message,) = check_modules()
        assert message.id == "django_ojs_unique.W023"
        assert named() == ["moving.tasks"]
        assert message.hint.endswith("each app: jobs. Add 'tasks' to OJS_UNIQUE['AUTODISCOVER_MODULES'].")


def test_a_project_says_where_else_handlers_are(app, handlers, settings):
    settings.OJS_UNIQUE = {"AUTODISCOVER_MODULES": ["jobs", "tasks"]}
    with app({"jobs": PLAIN, "tasks": PLAIN}):
        assert {"moving.jobs", "moving.tasks"} <= {*handlers}
        assert named() == []


@pytest.mark.parametrize("value", ["jobs", 5, [5]], ids=str)
def test_a_wrong_setting_does_not_stop_the_start(value, app, handlers, settings):
    settings.OJS_UNIQUE = {"AUTODISCOVER_MODULES": value}
    with app({"jobs": PLAIN}):
        assert "moving.jobs" not in handlers


@pytest.mark.parametrize(("source", "is_named"), [(DOTTED, True), (RENAMED, True), (NOT_OURS, False), (UNUSED, False)])
def test_what_declares_a_handler_is_read_from_the_source(source, is_named, app):
    with app({"tasks": source}):
        assert named() == (["moving.tasks"] if is_named else [])


def test_a_module_that_cannot_be_read_is_not_spoken_of(app):
    with app({"tasks": BROKEN}):
        assert named() == []


def test_the_modules_of_a_package_are_named_unless_it_imports_them(app):
    jobs = {"jobs/__init__": "from . import mail\n", "jobs/mail": PLAIN, "jobs/deep/files": PLAIN, "jobs/sms": PLAIN}
    with app({**jobs, "tasks/__init__": "", "tasks/crawl": PLAIN}):
        assert named() == ["moving.jobs.deep.files, moving.jobs.sms", "moving.tasks.crawl"]
        first, second = check_modules()
        assert first.hint.endswith("each app: jobs. Import them in moving.jobs.")
        assert second.hint.endswith("Import them in moving.tasks. Add 'tasks' to OJS_UNIQUE['AUTODISCOVER_MODULES'].")


def test_a_package_may_declare_handlers_itself(app):
    with app({"tasks/__init__": PLAIN}):
        assert named() == ["moving.tasks"]
        assert "Import" not in check_modules()[0].hint
