from hypothesis import settings

settings.register_profile("ojs", deadline=None, database=None)
settings.load_profile("ojs")
