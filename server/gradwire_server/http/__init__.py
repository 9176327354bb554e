"""The HTTP server: metrics, status and a health check.

::

    connections ──▶ Gate ──▶ Visit ──▶ aiohttp ──▶ HttpServer ──▶ Access    may the client see it?
                    how many  one request,            │
                              with a deadline         └────────▶ SharedPage  made once for all

It shares the event loop with the datagrams, and strangers may reach it. So all work that a client
can cause has a bound: `gate` limits the rate, the number and the duration of
connections; `pages` makes a page once for all clients that wait for it, and spends only a small
part of the time on it. `access` checks the token, and `server` puts them together.
"""
