from qts.venues.upbit.client import UpbitClient as UpbitClient
from qts.venues.upbit.stream import UpbitStream as UpbitStream
