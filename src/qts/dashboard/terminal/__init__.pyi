from qts.dashboard.terminal.app import Top as Top
from qts.dashboard.terminal.tables import LiveStatusSource as LiveStatusSource
from qts.dashboard.terminal.tables import StatusSource as StatusSource
from qts.dashboard.terminal.tables import TerminalSnapshot as TerminalSnapshot
from qts.dashboard.terminal.tables import frame as frame
