from qts.venues.kis.client import KisClient as KisClient
from qts.venues.kis.client import KisEndpoint as KisEndpoint
from qts.venues.kis.client import Reply as Reply
from qts.venues.kis.client import connect_kis as connect_kis
from qts.venues.kis.frames import FillNotice as FillNotice
from qts.venues.kis.quotes import KisQuotes as KisQuotes
from qts.venues.kis.quotes import symbols_per_call as symbols_per_call
from qts.venues.kis.stream import KisStream as KisStream
