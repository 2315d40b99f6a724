from qts.terminal.source import Seen as Seen
from qts.terminal.source import ServerSource as ServerSource
from qts.terminal.source import Source as Source
from qts.terminal.text import frame as frame
from qts.terminal.view import Top as Top
