"""What a newcomer writes from habit is refused in words that name the way."""

import pickle

import pytest

from django_ojs_unique import InvalidPolicy, InvalidRequest, RetryPolicy, job
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.words import counted
from tests.support.jobs import claim
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def welcome(handlers):
    @job("habit.welcome", unique={"keys": ["args"], "args_keys": ["user_id"]})
    def welcome(user_id, locale="en"):
        pass

    return welcome


@pytest.mark.parametrize("name", ["enqueue", "enqueue_on_commit", "explain"])
def test_a_misspelt_argument_is_named_as_the_handler_has_it(welcome, name):
    enqueue = getattr(Job.objects, name)
    with pytest.raises(TypeError, match=r"\{'user_id': 5\}.*'habit.welcome'"):
        enqueue("habit.welcome", usr_id=5)
    with refused(InvalidRequest, "args", names="'user_id'?"):
        enqueue("habit.welcome", {"usr_id": 5})


def test_a_policy_that_is_wrong_itself_is_still_blamed(welcome):
    with refused(InvalidPolicy, "unique.args_keys", value='"nothing"'):
        Job.objects.enqueue("habit.welcome", {"user_id": 5}, unique={"keys": ["args"], "args_keys": ["nothing"]})
    with pytest.raises(TypeError, match=r"'priority'\?"):
        Job.objects.enqueue("habit.welcome", {"user_id": 5}, prioritee=1)


def test_a_handler_is_no_type(welcome):
    with refused(InvalidRequest, "type", names="'habit.welcome'"):
        Job.objects.enqueue(welcome, {"user_id": 5})


def test_a_decorator_without_a_type_says_what_it_needs():
    with pytest.raises(TypeError, match=r"@job\('"):

        @job
        def send():
            pass


@pytest.mark.parametrize(
    ("name", "way"),
    [("id", "result.job.id"), ("get", "refresh_from_db"), ("status", "result.job.state"), ("revoke", "cancel")],
)
def test_a_result_says_where_the_job_has_it(welcome, name, way):
    result = welcome.enqueue(5)
    with pytest.raises(AttributeError, match=way):
        getattr(result, name)
    assert not hasattr(result, "nothing")
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(("name", "home"), [("Job", "models"), ("run_jobs", "testing")])
def test_an_import_from_the_wrong_place_names_the_right_one(name, home):
    with pytest.raises(ImportError, match=f"django_ojs_unique.{home}"):
        exec(f"from django_ojs_unique import {name}", {})


def test_a_job_that_lost_its_key_is_enqueued_again_with_all_its_attempts():
    running = Job.objects.enqueue("t", key="k", retry=RetryPolicy(max_attempts=7)).job
    claim(running)
    Job.objects.remove(key="k")
    running.refresh_from_db()
    assert (running.most_attempts, running.retry_policy.max_attempts) == (1, 1)
    running.cancel()
    assert running.enqueue_again().job.retry_policy.max_attempts == 7


def test_numbers_have_their_singular():
    assert [counted(number, "job") for number in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]
