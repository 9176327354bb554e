"""The HTTP server: the one door for people. They read what the master knows, and give it orders.

::

    connections ──▶ HttpServer ──▶ aiohttp ──▶ Access ──▶ a handler ──▶ SharedPage
                    how many,                  who may        │         made once for all
                    how long                                  └───────▶ orders

It shares the event loop with the datagrams, and strangers may reach it. So all work that a client
can cause has a bound: `server` limits the rate, the number and the duration of connections; `pages`
makes a page once for all clients that wait for it, and spends only a small part of the time on it.
`access` checks the token, and `orders` reads orders.
"""
