from qts.dashboard.terminal.app import Top as Top
from qts.dashboard.terminal.source import LiveStatusSource as LiveStatusSource
from qts.dashboard.terminal.source import StatusSource as StatusSource
from qts.dashboard.terminal.source import TerminalSnapshot as TerminalSnapshot
from qts.dashboard.terminal.tables import frame as frame
