"""The router on two machines: producers and processors on one, strategies on the other, over NATS.

    source machine                         NATS                       sink machine
    producers ▶ stage 1 ▶ processors       JetStream stream of        stage 2 ▶ strategies
              ▶ stage 2 ▶ EdgeSender ────▶ the run, on disk ────────▶ EdgeReceiver

Guarantees across the edge:

- Order. The sender numbers its batches 1, 2, 3, ... and the server stores number n only right
  after n - 1, so the number of a batch is its position in the stream and a retry cannot overtake.
- No duplicates in the stream: the same condition rejects a batch that is stored already.
- No loss when the server crashes: the source keeps every batch until it is confirmed, and resends
  what a restarted server does not have.
- No loss when the sink crashes. A batch is confirmed only after strategies have handled all of it;
  the next sink starts at the first batch that is not confirmed.
- Bounded memory. The number of batches in flight to the server and in the stream is limited; at
  the limit the sender blocks the workers of its router, and the producers slow down.
- Complete accounts. Each batch holds the number of messages its streams had before it, and the
  last one the totals; the sink compares them, the source reads what was confirmed.
"""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
