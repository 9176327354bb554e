"""A master in several processes, so that it can use more than one core.

::

                 datagrams, steered by the session id inside them
         │                     │                     │
    ┌────▼─────┐         ┌─────▼────┐          ┌─────▼────┐
    │ endpoint │         │ endpoint │          │ endpoint │   each with its own socket
    │  Master  │◀───────▶│  shard 1 │    ┌────▶│  shard 2 │
    └────┬─────┘ records └──────────┘    │     └──────────┘
         └───────────────────────────────┘
         arena 0 ═══════════ arena 1 ═════════════ arena 2      payloads, in shared memory

There is one `Master`, in process 0, and it is the same as where there is one process: it does not
know which process a worker's connection lives in. Every process carries the connections that the
kernel steers to it. Packets, acknowledgements, loss recovery and pacing are what takes the time,
and they stay where the connection is; what passes between processes is one short record for each
message, and its payload once, by way of memory that all of them see.

`steering` opens the sockets, `arena` is the memory, `parcels` are payloads on their way through it,
and `channel` carries records, which `records` describes. In process 0 `supervisor` starts and
watches the others, and `remote` stands for the connections that live there. `shard` is the program
that the other processes run, and `local` its side of what `remote` does.
"""
