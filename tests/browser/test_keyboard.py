"""The admin without a mouse."""

from django.contrib.auth.models import User

from django_ojs_unique.models import Job

MOST_TABS = 150

STOP = """selector => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const look = () => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const { outline, boxShadow, border, background, color, textDecoration } = style;
    return String([outline, boxShadow, border, background, color, textDecoration, box.width, box.height]);
  };
  const focused = look();
  element.blur();
  const blurred = look();
  element.focus();
  return [focused !== blurred, element.matches(selector), element.outerHTML.slice(0, 200)];
}"""
"""Whether the element with the focus shows it, whether it is the wanted one, and which it is; null outside the page."""


def test_a_job_is_cancelled_without_a_mouse(visit):
    User.objects.create_superuser("grace", password="secret")
    job = Job.objects.enqueue("email.send").job
    visitor = visit()
    page, keyboard = visitor.page, visitor.page.keyboard
    page.goto(f"{visitor.base}/admin/")
    page.locator("#id_username:focus").wait_for()  # a busy browser gives it the focus later than the page
    keyboard.type("grace")
    keyboard.press("Tab")
    page.locator("#id_password:focus").wait_for()
    keyboard.type("secret")
    keyboard.press("Enter")
    page.wait_for_url(f"{visitor.base}/admin/")

    tab_to(visitor, "#content-main a[href$='/django_ojs_unique/job/']")
    keyboard.press("Enter")
    page.wait_for_url(visitor.url("job_changelist"))
    tab_to(visitor, f"input[name='_selected_action'][value='{job.pk}']")
    keyboard.press("Space")
    tab_to(visitor, "select[name='action']")
    keyboard.type("Cancel")
    tab_to(visitor, "button[name='index']")
    keyboard.press("Enter")
    visitor.shows("Cancelled: 1 job")
    job.refresh_from_db()
    assert job.state == "cancelled"


def tab_to(visitor, selector):
    """Press Tab until an element has the focus, round the page if need be; each stop on the way must show it."""
    for _ in range(MOST_TABS):
        visitor.page.keyboard.press("Tab")
        if stop := visitor.page.evaluate(STOP, selector):  # else it goes on at the top
            shows_focus, is_wanted, element = stop
            assert shows_focus, f"{element} does not show its focus"
            if is_wanted:
                return
    raise AssertionError(f"{selector} is not reached")
