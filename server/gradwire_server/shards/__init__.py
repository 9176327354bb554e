"""A master in several processes, to use more than one core.

::

                 datagrams, steered by the session id inside them
         │                     │                     │
    ┌────▼─────┐         ┌─────▼────┐          ┌─────▼────┐
    │ endpoint │         │ endpoint │          │ endpoint │   each with its own socket
    │  Master  │◀───────▶│  shard 1 │    ┌────▶│  shard 2 │
    └────┬─────┘ records └──────────┘    │     └──────────┘
         └───────────────────────────────┘
         arena 0 ═══════════ arena 1 ═════════════ arena 2      payloads, in shared memory

There is one `Master`, in process 0. It does not know which process has a worker's connection. Every
process serves the connections that the kernel steers to it. Packets, acknowledgements, loss
recovery and pacing take most of the time, and stay in the process of the connection. For each
message, one short record passes between processes, and its payload once, through shared memory.

`steering` opens the sockets, `arena` is the memory, `parcels` are payloads in it, and `channel`
carries records, which `records` describes. In process 0, `supervisor` starts and watches the other
processes, and `remote` represents their connections. `shard` is the program that the other
processes run, and `local` is the counterpart of `remote` in them.
"""
