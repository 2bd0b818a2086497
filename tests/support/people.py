"""People of the staff, with the permissions that a test gives them."""

from django.contrib.auth.models import Permission, User


def log_in(client, *permissions):
    """Log somebody in who may use the admin and has some permissions, as in ``view_job``; return the user."""
    user = User.objects.create_user("ada", password="x", is_staff=True)
    give(user, *permissions)
    client.force_login(user)
    return user


def give(user, *permissions):
    """Give a user more permissions."""
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
