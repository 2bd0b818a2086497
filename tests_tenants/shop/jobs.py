from django.db import connection

from django_ojs_unique import UniquePolicy, job
from tests_tenants.shop.models import Done

ONCE = UniquePolicy(keys=["type", "args"], on_conflict="ignore")


@job("work", unique=ONCE)
def work(number):
    Done.objects.create(number=number, seen=connection.tenant.schema_name)


@job("awork", unique=ONCE)
async def awork(number):
    await Done.objects.acreate(number=number, seen="")
    await Done.objects.filter(number=number).aupdate(seen="async")


@job("fail_once", unique=ONCE, retry={"max_attempts": 3, "initial_interval": "PT0.001S"})
def fail_once(number):
    if not Done.objects.filter(number=number, seen="failed").exists():
        Done.objects.create(number=number, seen="failed")
        raise ValueError("once")
    Done.objects.create(number=number, seen="succeeded")
