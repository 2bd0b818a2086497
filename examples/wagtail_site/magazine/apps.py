from django.apps import AppConfig


class MagazineConfig(AppConfig):
    name = "magazine"

    def ready(self) -> None:
        from wagtail.signals import page_published

        from .tasks import tell_readers

        def published(sender, instance, **kwargs):
            tell_readers.enqueue(instance.pk)

        page_published.connect(published, weak=False, dispatch_uid="magazine")
