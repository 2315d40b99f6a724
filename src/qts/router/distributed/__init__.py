"""The router on two machines: producers and processors here, strategies there, NATS between them.

    source machine                       NATS                       sink machine
    producers ▶ stage 1 ▶ processors     JetStream stream of        stage 2 ▶ strategies
              ▶ stage 2 ▶ Outlet ──────▶ the run, on disk ────────▶ Inlet

What holds across the edge, and why:

- Order. The outlet numbers its batches 1, 2, 3, ... and asks the server to store number n only
  right after n - 1, so a batch's number is its place in the stream and a retry cannot overtake.
- Nothing twice in the stream: the same condition refuses a batch that is there already.
- Nothing lost by a crash of the server: the source keeps every batch until it is confirmed, and
  sends again what a server that came back does not have.
- Nothing lost by a crash of the sink. A batch is confirmed only after strategies had all of it;
  what was not confirmed is handed out again to the next sink, which begins right there.
- Bounded memory. So many batches may be under way to the server and so many wait in the stream;
  then the outlet holds its router's workers, and the producers slow down.
- Everything accounted for. Each batch says how many messages its streams had before it, and the
  last one how many there were in all; the sink compares, the source reads what was confirmed.
"""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
