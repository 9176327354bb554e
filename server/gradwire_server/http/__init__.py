"""The HTTP side: what Prometheus scrapes, and what tells whether the master lives.

::

    connections ──▶ Gate ──▶ Visit ──▶ aiohttp ──▶ HttpServer ──▶ Access    who may see a page
                    how many  one request,            │
                              for a while             └────────▶ SharedPage  made once for all

It shares the event loop with the datagrams, and strangers may reach it. So everything that they
can make it do has a bound, in `limits`: `gate` lets connections in at a rate, a few at a time, each
with an end; `pages` makes a page once for all who wait for it, and never spends more than a small
part of the time on it. `access` knows the token, and `server` puts them together.
"""
