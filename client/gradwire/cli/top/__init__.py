"""``gradwire top``: a master's runs and workers in a terminal, live.

::

    command ──▶ watching ──▶ documents ──▶ MasterHttp
                    └──────▶ screen     what is shown of the documents, in so many rows and columns
"""
