"""The site of these tests holds what they rely on."""


def test_what_the_policy_forbids_does_not_escape_the_watch(operator):
    operator.page.goto(f"{operator.base}/careless/")
    operator.page.goto(f"{operator.base}/nowhere/")
    found = "\n".join(operator.watch.problems)
    operator.watch.problems.clear()
    assert "Content Security Policy" in found
    assert "404: " in found


def test_djangos_own_pages_bear_the_policy(operator):
    for page in ("/admin/", "/admin/auth/user/add/", "/admin/django_ojs_unique/"):
        assert operator.page.goto(operator.base + page).ok
        assert operator.page.locator("#content h1").is_visible()
