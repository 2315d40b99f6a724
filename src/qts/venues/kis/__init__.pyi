from qts.venues.kis.client import KisClient as KisClient
from qts.venues.kis.client import Reply as Reply
from qts.venues.kis.client import Service as Service
from qts.venues.kis.frames import Fill as Fill
from qts.venues.kis.quotes import KisQuotes as KisQuotes
from qts.venues.kis.quotes import symbols_per_call as symbols_per_call
from qts.venues.kis.session import open_kis as open_kis
from qts.venues.kis.stream import KisStream as KisStream
