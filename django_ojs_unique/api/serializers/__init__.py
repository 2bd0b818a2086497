"""The bodies of requests and answers in the words of Django REST framework, from which the OpenAPI document is made.

They describe: a request is read by `reading`, which also accepts what a serializer cannot say, and an answer is written
by the views. Limits, shapes and names are those of the engine.
"""
