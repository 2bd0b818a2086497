"""System checks, one module for each subject; `AppConfig.ready` imports them. Their ids never change.

A hint says all that there is to do: an installed package has no pages to refer to.
"""
