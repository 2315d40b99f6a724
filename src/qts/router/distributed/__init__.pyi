from qts.router.distributed.edge import EdgeConfig as EdgeConfig
from qts.router.distributed.roles import Sink as Sink
from qts.router.distributed.roles import Source as Source
from qts.router.distributed.roles import strategies_only as strategies_only
from qts.router.distributed.sender import EdgeSender as EdgeSender
