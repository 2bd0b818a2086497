"""The bodies of requests and answers as serializers of Django REST framework, for the OpenAPI document only.

The modules of `api.wire` read the requests, and accept more than a serializer can describe. The views write the
answers. Limits, shapes and names are those of the engine.
"""
