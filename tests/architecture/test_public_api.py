"""The names users may rely on: a change here is a change of contract, and is made on purpose."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PUBLIC: dict[str, str] = {
    "qts": "__version__",
    "qts.brokers": """
        ACKNOWLEDGEMENT Blocked Broker BrokersConfig CostsConfig Found KisBroker Lost Matching
        Notice PaperBroker PaperConfig UpbitBroker
    """,
    "qts.cache": """
        Alert Book BreakerConfig Cache CacheConfig CacheStatus Change Level OrderStatus
        Position PreCheck Price Risk ServerStatus Store StrategyParams TradeIds Truth Ttls
        Value look read_raw
    """,
    "qts.config": """
        Config Effective Origin Setting describe load render resolve settings_of template
    """,
    "qts.dashboard": """
        ACKNOWLEDGEMENT Dashboard DashboardConfig Live Role Sources Tokens USUAL_PORT address_of
        keep_route kept_route listen read_live serve
    """,
    "qts.database": """
        Applied Connection Database DatabaseConfig Isolation Listener Listening Migration
        MigrationStatus Notification Ping Row migrate savepoint status
    """,
    "qts.domain": """
        Account AttemptState BrokerOrder CacheStaleDataError Clock ConfigError Costs
        EventRefused Failed Fill Holding HomeInUse IntentType KRX_TICKS LaneFull Market
        MovableClock OrderRequest OrderState OrderType OutcomeUnknown
        PriceDataUnavailableError QtsError Refused ScenarioError SchemaTooNew Secret
        ServerFailed Side SystemClock TradeLimitExceededError UPBIT_TICKS Unreachable
        day_limits is_on_tick market_of parse_duration tick_size to_tick
    """,
    "qts.embedded": """
        Binary EmbeddedConfig Home HomeLock Nats NatsConfig Postgres Servers Valkey
        default_home find_binaries
    """,
    "qts.events": """
        AUDIT Alert Catalogue DEEDS DeadLetter DeadLetterDesk DeadLetters Engine Event
        EventType EventsConfig Handler Hooks IsolationLoad IsolationReport KeptLetter LaneConfig
        LaneReport LaneStatus Latency Level NaiveReport Payload Pressure Priority Publisher
        RECORD SLA Status Stopped batch compiled factory payloads replay rows verify_isolation
    """,
    "qts.feed": """
        BurstManager Calendar Demand Feed FeedConfig FeedState Intake ObservationSnapshot
        Observer PatternRecord Plan Poller PollerState PriceCache Recorder SEOUL Session
        Source Surge SurgeDetector UpbitSource best_quotes export_parquet offline_plan plan
        read read_symbols replay
    """,
    "qts.notify": """
        Book Channel Declined Gone Later Message Notifications Notifier NotifyConfig PushConfig
        RULES Rule Severity SlackConfig TelegramConfig Waiting WebhookConfig grafana_dashboard
        hash_of new_key prometheus_rules public_key read_key subscribe unsubscribe
    """,
    "qts.orders": """
        Agreement AttemptChanged Book CancelOrder Change CreateOrderAttempt Desk Difference
        Executor FillApplied FillReceived Floor Held Ledger Life MarketChanged MarketResumed
        MarketSuspended OnChange OrderAbsent OrderAccepted OrderChanged OrderClosed
        OrderRejected OrderRow OrderSuspended OrderThrottled OrderUnknown OrdersConfig
        Pending PositionRow Reconcile Reconciler Report Resolved Safety Standing Submitted
        Suspended Switchboard adopt books_agree external freeze is_active list_orders positions
        resolve_by_hand resume_by_hand show_order signal_id standing suspended
    """,
    "qts.outbox": """
        BACKTEST_COMMAND BACKTEST_EVENT BenchResult CarriedBus Consumer DeadLetter Delivery
        Depth Desk Dispatcher Envelope Event EventBus EventDispatcher EventRefused EventRow
        Handler KafkaBus KafkaBusConfig NatsBus NatsBusConfig OutboxConfig OutboxWorker
        Permanent PostgresBus Relay Retryable SYSTEM_EVENT StreamConfig TRADE_COMMAND
        TRADE_EVENT Unknown Upkeep WORKERS bench depths once open_bus open_carried paused
        uuid7
    """,
    "qts.pipeline": """
        Apart BacktestCompleted BacktestConfig BacktestFailed BacktestJobs BacktestRequested
        BacktestResult Chunk Cycle Decision Evaluation Execution Header JobRow Joints Journal Kind
        Leave NoParams Outcomes Performance Pipeline PipelineConfig Point Position
        RecordedWorld Retraced Runner Signal StepFailed StepStrategy Strategy Suspension Tape Tick
        Trade Trader View World act backtest
        decide evaluate exposure_of extract list_jobs load_strategy page_of performance
        retrace shipped show_job submit_job table tick_of to_json transform
    """,
    "qts.risk": """
        Approved CODES Code EMERGENCY_ORDER Effect EmergencyOrder Entry Exposure Facts
        FailSafe Gate HoldingLimits KillSwitch Limits LimitsConfig Market MicroRisk Proposal REASONS
        Reason Refusal RiskConfig Safety SafetyState StopHolding StopsConfig Switch Switches
        Watch
    """,
    "qts.router": """
        Burst EdgeConfig Handler Indicator JournalConfig Layout LiveLine MESSAGE Message
        Options Outlet Pacing Percentiles Place Plan Replay Report Router Scenario Sink
        Snapshot Source StallFloor StrategyCount Stream Wait Worker batch compiled
        differences each ema load plan read_streams rsi shipped strategies_only vwap watch
    """,
    "qts.simulators": """
        Fault KisKey KisSimulator KisSimulatorConfig Limits MarketConfig SimulatedClock Simulator
        UpbitKey UpbitSimulator UpbitSimulatorConfig
    """,
    "qts.telemetry": """
        CONTENT_TYPE Ids LatencyHistogram Span TelemetryConfig Throttle bind carry configure
        context context_of counter current_context every exposed gauge histogram latency
        lines_dropped logger new_trace_id redact_text render samples shutdown span tracing
        watch_host
    """,
    "qts.dashboard.terminal": "Seen ServerSource Source Top frame",
    "qts.venues": """
        Book Budget BudgetState Fill KisClient KisConfig KisQuotes KisStream Leaving Ledger Level
        LimitsConfig NotOffered Priority Quote Rejected Room Service Throttled UpbitClient
        UpbitConfig UpbitStream VenuesConfig open_kis room symbols_per_call
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_locked(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == set(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    face = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(face, name)] == []


def test_importing_qts_is_light() -> None:
    """A strategy author pays for what he uses: `import qts` pulls in no driver and no terminal."""
    heavy = {"asyncpg", "redis", "typer", "rich", "uvloop", "opentelemetry"}
    code = "import sys, qts; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(loaded.stdout.split())
