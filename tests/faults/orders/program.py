"""A trading worker to be killed: reconciles, then executes commands, on a simulated venue.

Its argument is JSON (see WorkerJob). It prints `ready` once it has reconciled, submits the
proposals of its job, and ends on SIGTERM. QTS_DIE_AT names the failpoint at which it kills itself.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

import msgspec
import uvloop

from qts.brokers import Broker, BrokersConfig, UpbitBroker
from qts.database import Database, DatabaseConfig
from qts.domain import AccountKey, OperationError, Secret, SystemClock
from qts.orders import (
    DatabaseSafetyControls,
    ExecutionContext,
    Ledger,
    OrderExecutor,
    OrderManager,
    OrdersConfig,
    Reconciler,
    SubmitResult,
    TimeInForceEnforcer,
    load_account_state,
)
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EXIT,
    Dispatcher,
    OutboxConfig,
    PostgresBus,
    StreamConfig,
)
from qts.pipeline.risk_snapshot import account_facts, trading_day_start
from qts.risk import FailSafe, KillSwitch, OrderProposal
from qts.risk.proposal import approve
from qts.venues import UpbitClient, UpbitConfig
from tests.orders.kit import UnusedLease


class WorkerJob(msgspec.Struct):
    """Argument of the worker."""

    database: str
    url: str
    ws_url: str
    access_key: str
    secret_key: str
    config: OrdersConfig
    stream: StreamConfig
    still_s: float  # idle timeout of its transactions
    orders_per_second: int
    proposals: list[OrderProposal] = []  # submitted here, and sent directly where that may be


async def open_broker(stack: AsyncExitStack, job: WorkerJob) -> Broker:
    clock = SystemClock()
    config = UpbitConfig(
        access_key=Secret(job.access_key),
        secret_key=Secret(job.secret_key),
        url=job.url,
        stream_url=f"{job.ws_url}/websocket/v1",
        timeout_s=job.config.place_timeout_s,
        orders_per_second=job.orders_per_second,
        requests_per_second=100,
    )
    client = await stack.enter_async_context(UpbitClient.open(config, clock))
    return UpbitBroker(
        client,
        BrokersConfig(broker="upbit", send_timeout_s=job.config.place_timeout_s / 2),
        clock,
    )


async def work(job: WorkerJob) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AsyncExitStack() as stack:
        pool = DatabaseConfig(
            pool_min=2,
            pool_max=12,
            connect_timeout_s=10,
            idle_transaction_timeout_s=job.still_s,
        )
        database = await stack.enter_async_context(Database.open(Secret(job.database), pool))
        streams = {**OutboxConfig().streams, TRADE_COMMAND: job.stream, TRADE_EXIT: job.stream}
        bus = await stack.enter_async_context(PostgresBus.open(database, streams))
        broker = await open_broker(stack, job)
        safety = DatabaseSafetyControls(
            FailSafe(database, broker.key), KillSwitch(database, broker.key)
        )
        ledger = Ledger(database, bus, broker.key, on_change=None)
        orders = await stack.enter_async_context(database.reserved(2))
        context = ExecutionContext(
            database, bus, broker, ledger, safety, job.config, SystemClock(), orders
        )
        reconciler = Reconciler(context, None)
        await _first_look(reconciler, stopped)
        print("ready", flush=True)
        dispatcher = Dispatcher()
        executor = OrderExecutor(
            context, reconciler.is_reconciled, reconciler.request, UnusedLease(SystemClock())
        )
        executor.register(dispatcher)
        account = str(broker.key)
        workers = [bus.consumer(name, dispatcher, account) for name in (TRADE_COMMAND, TRADE_EXIT)]
        manager = OrderManager(database, bus, broker.key, None, executor=executor)
        looking = [
            asyncio.create_task(TimeInForceEnforcer(context, manager.cancel).run()),
            asyncio.create_task(reconciler.run()),
            asyncio.create_task(reconciler.follow_reports()),
        ]
        serving = [asyncio.create_task(worker.run()) for worker in workers]
        first = reconciler.last
        for proposal in job.proposals:
            # The stream that opens is a gap: until it is reconciled, no order is sent directly.
            while reconciler.last is first or not reconciler.is_reconciled():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await submit(manager, database, broker.key, proposal)
        await asyncio.wait(
            {asyncio.create_task(stopped.wait()), *serving, *looking},
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in looking:
            if task.done():
                task.result()  # a bug of ours: end, and say so
        for worker in workers:
            worker.stop()
        await asyncio.gather(*serving)
        for task in looking:
            task.cancel()
        await asyncio.wait(looking)


async def submit(
    manager: OrderManager, database: Database, key: AccountKey, proposal: OrderProposal
) -> SubmitResult:
    """Submit an order on facts that are read now; again when they change meanwhile."""
    while True:
        now = SystemClock().now()
        day = trading_day_start(now)
        account = await load_account_state(database, key, day, now)
        facts = account_facts(proposal.symbol, account)
        submitted = await manager.submit(approve(proposal, now, facts))
        if not submitted.is_outdated:
            return submitted


async def _first_look(reconciler: Reconciler, stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        try:
            await reconciler.reconcile_now()
        except OperationError as error:
            print(f"not yet: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    uvloop.run(work(msgspec.json.decode(sys.argv[1], type=WorkerJob)))
