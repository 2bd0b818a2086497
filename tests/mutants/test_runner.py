"""The runner of the mutants, on a small repository of its own."""

import pytest

from tests.mutants.runner import PACKAGE, ROOT, Copy, Moved, Mutant, applied, judge, needed, read

SMALLER = Mutant("heart", "a boundary is wrong", "bounds.py", "<=", "<", ("tests/test_bounds.py::test_bound",))
FILES = {
    "django_ojs_unique/__init__.py": "",
    "django_ojs_unique/pytest_plugin.py": "",
    "django_ojs_unique/bounds.py": "def fits(number):\n    return number <= 3\n",
    "tests/__init__.py": "",
    "tests/settings.py": "SECRET_KEY = 'tests'\n",
    "tests/test_bounds.py": (
        "import subprocess, sys\n"
        "from django_ojs_unique.bounds import fits\n\n"
        "def test_far_away():\n    assert fits(1) and not fits(9)\n\n"
        "def test_bound():\n    assert fits(3)\n\n"
        "def test_bound_in_a_process():\n"
        "    program = 'from django_ojs_unique.bounds import fits; assert fits(3)'\n"
        "    subprocess.run([sys.executable, '-c', program], check=True)\n"
    ),
}


def changed(**values):
    return Mutant(**{name: getattr(SMALLER, name) for name in SMALLER.__slots__} | values)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def copy(tmp_path, root):
    return Copy(tmp_path, {}, root)


def test_a_text_is_replaced_where_it_is_once_and_refused_where_it_is_not():
    assert applied(SMALLER, "1 <= 2 > 1") == "1 < 2 > 1"
    for source in ("1 < 2", "1 <= 2 <= 3"):
        with pytest.raises(Moved, match="renew this mutant"):
            applied(SMALLER, source)


def test_a_mutant_is_in_the_copy_only_and_only_for_a_time(copy, root):
    file = copy.folder / "django_ojs_unique/bounds.py"
    with copy.broken(SMALLER):
        assert "number < 3" in file.read_text()
        assert {name: (root / name).read_text() for name in FILES} == FILES
    assert file.read_text() == FILES["django_ojs_unique/bounds.py"]


MUTANTS = read((ROOT / "tests/mutants/mutants.toml").read_text())


def test_each_mutant_is_one_change_of_the_package_as_it_is():
    for mutant in MUTANTS:
        applied(mutant, (ROOT / PACKAGE / mutant.file).read_text())


def test_the_tests_of_each_mutant_are_there():
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        path, *names = test.partition("[")[0].split("::")
        assert not names or f"def {names[-1]}(" in (ROOT / path).read_text(), test


@pytest.mark.parametrize("moved", [{"old": "=="}, {"file": "gone.py"}])
def test_code_that_has_moved_is_no_kill(copy, moved):
    assert not judge(copy, changed(**moved)).killed


@pytest.mark.slow
def test_a_mutant_is_killed_by_a_test_that_fails_and_by_nothing_else(copy):
    verdict = judge(copy, SMALLER)
    assert (verdict.killed, verdict.why) == (True, "killed by tests/test_bounds.py::test_bound")
    assert judge(copy, changed(tests=("tests/test_bounds.py::test_bound_in_a_process",))).killed
    for others in ("tests/test_bounds.py::test_far_away", "tests/test_bounds.py::test_gone"):
        assert not judge(copy, changed(tests=(others,))).killed
    assert not judge(copy, changed(new="<= ]")).killed  # it does not even compile


def test_the_tests_of_many_mutants_are_run_once_for_each_database():
    elsewhere = changed(name="elsewhere", database="MariaDB")
    assert needed([SMALLER, changed(name="again"), elsewhere]) == {
        ("SQLite", "ci"): [*SMALLER.tests],
        ("MariaDB", "ci"): [*SMALLER.tests],
    }


def test_an_unknown_area_and_a_name_that_comes_twice_are_refused():
    one = '[[{}]]\nname = "n"\nfile = "f"\nold = "o"\nnew = "n"\ntests = []\n'
    assert [mutant.area for mutant in read(one.format("db"))] == ["db"]
    for text in (one.format("elsewhere"), one.format("db") * 2):
        with pytest.raises(AssertionError):
            read(text)
