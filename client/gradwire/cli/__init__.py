"""The command line: ``gradwire`` and its commands; `commands` lists them."""
