"""Model instances as args: stored by their primary key, and read again before each run."""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.sessions.models import Session
from django.db.models import Model
from django.utils.functional import SimpleLazyObject
from django.utils.timezone import now

from django_ojs_unique.exceptions import HandlerError, InvalidArgs, InvalidRequest
from django_ojs_unique.handlers.conversion.arguments import ConvertedArguments
from django_ojs_unique.handlers.conversion.containers import NoConversion
from django_ojs_unique.handlers.conversion.instances import Instance
from django_ojs_unique.handlers.registry import Definition
from django_ojs_unique.models import Job
from tests.handlers.test_converted_values import converted, from_json, to_json
from tests.support.refusals import refused
from tests.support.rows import insert

User = get_user_model()
pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    return User.objects.create(username="ada")


def test_an_instance_is_its_key_and_comes_back(ada):
    for given in (ada, SimpleLazyObject(lambda: ada), ada.pk, str(ada.pk)):
        assert to_json(User, given) == ada.pk
    assert from_json(User, ada.pk) == ada
    assert from_json(User | None, None) is None


def test_the_key_is_written_by_its_own_type():
    job = insert(type="t")
    session = Session.objects.create(session_key="abc", expire_date=now())
    assert (to_json(Job, job), to_json(Job, str(job.pk).upper())) == (str(job.pk), str(job.pk))
    assert from_json(Job, str(job.pk)) == job
    assert (to_json(Session, session), from_json(Session, "abc")) == ("abc", session)


def test_many_are_read_at_once_in_their_order(ada, django_assert_num_queries):
    bob = User.objects.create(username="bob")
    stored = to_json(list[User | None], [bob, None, ada, bob])
    assert stored == [bob.pk, None, ada.pk, bob.pk]
    with django_assert_num_queries(1):
        assert from_json(list[User | None], stored) == [bob, None, ada, bob]
    assert to_json(list[User], User.objects.order_by("pk")) == [ada.pk, bob.pk]


def test_any_of_several_models_says_which(ada):
    group = Group.objects.create(name="g")
    for hint in (User | Group, Model):
        assert to_json(hint, ada) == to_json(hint, f"auth.user/{ada.pk}") == f"auth.user/{ada.pk}"
        assert to_json(hint, SimpleLazyObject(lambda: group)) == f"auth.group/{group.pk}"
        assert from_json(hint, f"auth.group/{group.pk}") == group
    assert from_json(User | Group | None, None) is None


@pytest.mark.parametrize(
    ("hint", "value", "named"),
    [
        (User, User(username="new"), "Save"),
        (Job, Job(type="t"), "Save"),
        (User, "ada", "auth.User"),
        (User, True, "auth.User"),
        (User, None, "auth.User"),
        (User | Group, "auth.permission/1", "User or Group"),
        (User | Group, "auth.nothing/1", "User or Group"),
        (User | Group, Permission(pk=1), "User or Group"),
        (User, Group(pk=1), "auth.Group"),
    ],
)
def test_what_has_no_row_or_another_table_is_refused(hint, value, named):
    with refused(InvalidRequest, "args.a", names=named):
        to_json(hint, value)


def test_a_refusal_makes_no_query(django_assert_num_queries):
    with django_assert_num_queries(0), refused(InvalidRequest, "args.a", names="auth.User"):
        to_json(User, User.objects.all())


def test_a_row_that_is_gone_is_named(ada):
    key = ada.pk
    ada.delete()
    for hint, stored in ((User, key), (list[User], [key]), (Model, f"auth.user/{key}")):
        with refused(InvalidArgs, "args.a", names="deleted"):
            from_json(hint, stored)
    with refused(InvalidRequest, "args.a", names="Send"):
        to_json(User, ada)


@pytest.mark.parametrize(("hint", "stored"), [(User, "x"), (User, []), (User | Group, 5), (Model, "nothing/1")])
def test_what_was_stored_for_another_type_is_an_error(hint, stored):
    with refused(InvalidArgs, "args.a", names="stored"):
        from_json(hint, stored)


@pytest.mark.slow
def test_rows_are_read_where_they_are_written(settings, ada):
    class Replicas:
        def db_for_read(self, model, **hints):
            return "other"

    settings.DATABASE_ROUTERS = [Replicas()]
    assert from_json(User, ada.pk) == ada


def test_a_key_of_several_columns_is_refused():
    class Two:
        class _meta:  # noqa: N801
            label, pk_fields = "app.Two", [1, 2]

    with pytest.raises(NoConversion, match=r"app\.Two .* columns"):
        Instance(Two)


def test_a_model_that_is_known_for_the_type_checker_only_is_refused_with_the_hint():
    def handler(a: "Order"):  # noqa: F821
        pass

    with refused(HandlerError, names="'Order'"):
        ConvertedArguments(Definition("t", handler)).check()
    assert converted(User).check() is None
