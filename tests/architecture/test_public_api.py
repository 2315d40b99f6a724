"""The public names of every package: a change here is a change of the contract."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "qts"
PUBLIC: dict[str, str] = {
    "qts": """
        Account BacktestConfig BacktestResult IntentType NoParams OrderType Position Side Signal
        StepStrategy Strategy Tick View __version__ load_strategy load_tape run_backtest
    """,
    "qts.app": """
        App DashboardLaunch DashboardProcess RunListener RunSummary ServerInfo SimulatedVenue
        StartupInfo TradingSummary TradingSystem build_app cache_url dashboard_launch database_url
        login_link open_database open_store restore_backup run_account serve_dashboard
        start_servers write_backup
    """,
    "qts.backtest": """
        BacktestCompleted BacktestConfig BacktestFailed BacktestJobHandler BacktestRequested
        BacktestResult Chunk EquityPoint JobRow Performance Tape Trade list_jobs performance
        render_html render_table run_backtest select_tape show_job submit_job to_json
    """,
    "qts.brokers": """
        ACKNOWLEDGEMENT AccountLock Broker BrokersConfig ExecutionReport FeesConfig KisBroker
        OrderMatches PaperBroker PaperConfig PaperMatchingEngine StreamGap UpbitBroker
        VenueBlockedError account_key list_accounts match_orders
        open_account
    """,
    "qts.cache": """
        BreakerConfig Cache CacheAlert CacheConfig CacheEntry CacheLoader CacheStatus CacheStore
        CachedLevel CachedOrder CachedOrderBook CachedPosition CachedPrice CachedRisk
        CachedStrategyParams Invalidation PreCheck ServerStatus StoreWrite TradeIds Ttls
        inspect_server read_raw
    """,
    "qts.config": """
        Config LoadedConfig Origin Setting describe load render render_template resolve settings_of
    """,
    "qts.dashboard": """
        ACKNOWLEDGEMENT DEFAULT_PORT Dashboard DashboardConfig DashboardSources LiveStatus
        LiveStatusSource Role TerminalSnapshot Tokens Top address_of bind_socket frame read_live
        serve
    """,
    "qts.dashboard.terminal": "LiveStatusSource StatusSource TerminalSnapshot Top frame",
    "qts.database": """
        AppliedMigration Connection Database DatabaseConfig Isolation ListenStarted Listener
        Migration MigrationStatus Notification Ping Row load_queries migrate migration_status
        savepoint
    """,
    "qts.domain": """
        Account AccountKey AttemptState BrokerOrder CacheStaleDataError Clock ConfigError
        EventRefusedError FeeSchedule Fill Holding HomeInUseError IntentType KRX_TICKS LaneFullError
        ManualClock Market OperationError OrderRequest OrderState OrderType OutcomeUnknownError
        Position PriceDataUnavailableError QtsError RefusedError ScenarioError SchemaTooNewError
        Secret ServerFailedError Side SystemClock Tick TimeInForce TradeLimitExceededError
        UPBIT_TICKS UnreachableError check_name daily_price_limits good_until is_on_tick
        market_for_symbol min_order_value name_choices nearest_name parse_duration round_to_tick
        tick_size
    """,
    "qts.embedded": """
        Binary EmbeddedConfig EmbeddedServers Home HomeLock NatsServer NatsServerConfig
        PostgresServer ValkeyServer default_home find_binaries
    """,
    "qts.events": """
        AUDIT_ACTIONS AUDIT_DTYPE AlertHooks Catalogue DeadLetter DeadLetterAdmin DeadLetterBuffer
        DegradationLevel EVENT_DTYPE EngineStatus Event EventEngine EventHandler EventType
        EventsConfig LaneAlert LaneConfig LaneStatus Latency Payload Pressure Priority Publisher SLA
        StopReport StoredDeadLetter batch compiled factory replay_audit rows
    """,
    "qts.feed": """
        BurstManager Demand Feed FeedConfig FeedStatus ObservationSnapshot Observer PatternRecord
        Poller PollerStatus PriceCache QuoteIngest QuoteSource Recorder SEOUL ScanPlan Surge
        SurgeDetector TradingCalendar TradingSession UpbitQuoteSource best_bid_ask export_parquet
        plan_scan plan_scan_offline read_records read_symbols replay
    """,
    "qts.notify": """
        AlertRule ChannelGoneError ChannelStatus Message MessageDeclinedError MessageStore
        NotificationChannel NotificationService NotifyConfig PushConfig QueuedMessage RULES
        RecentAlert RecentAlerts RetryLaterError Severity SlackConfig TelegramConfig WebhookConfig
        address_hash grafana_dashboard new_key prometheus_rules public_key read_key subscribe
        unsubscribe
    """,
    "qts.orders": """
        AccountListener AccountState AttemptChanged BaselineHolding CancelOrder CreateOrderAttempt
        DatabaseSafetyControls ExecutionContext FillApplied FillReceived LEDGER_CHANNEL Ledger
        MarketResumed MarketSuspended OpenOrder OrderAbsent OrderAccepted OrderChanged OrderClosed
        OrderExecutor OrderHistory OrderListener OrderManager OrderRejected OrderRow OrderSuspended
        OrderThrottled OrderUnknown OrderUpdate OrdersConfig PositionMismatch PositionRow
        PositionState Reconcile ReconcileCheck ReconcileReport Reconciler ResolveCounts
        SafetyControls SubmitResult SuspensionChanged SymbolSuspension TimeInForceEnforcer
        accept_holding adopt_holding check_broker check_ledger_symbol check_reconciled check_symbol
        external_fill freeze_position half_sold_symbols is_tradable list_baseline list_orders
        list_positions list_suspensions load_account_state load_baseline order_history
        resolve_manually resume_manually signal_id_for symbols_on_order
    """,
    "qts.outbox": """
        BACKTEST_COMMAND BACKTEST_EVENT Consumer Delivery Depth Dispatcher Envelope EventBus
        EventDispatcher EventRow KafkaBus KafkaBusConfig NatsBus NatsBusConfig OutboxAdmin
        OutboxConfig OutboxDeadLetter OutboxEvent OutboxEventRefusedError OutboxHandler
        OutboxMaintenance OutboxWorker PermanentError PostgresBus Relay RelayedBus RetryableError
        SYSTEM_EVENT StreamConfig TRADE_COMMAND TRADE_EVENT TRADE_EXIT UnknownOutcomeError WORKERS
        mark_handled
        open_bus open_relayed_bus paused_streams stream_depths uuid7
    """,
    "qts.pipeline": """
        CallError Cycle Decision DecisionJournal DecisionPolicy DecisionReplayReport EtedaPipeline
        Evaluation Execution IntentTracker IsolatedRunner JournalHeader JournaledPortfolio
        MAX_ERRORS_IN_A_ROW OrderSubmitter OrderUpdatePublisher PipelineConfig PipelineHooks
        PipelineSuspension Portfolio RunnerHooks StepFailedError StrategyRunner TickPublisher act
        call_strategy compute_exposure decide evaluate extract replay_decisions tick_from_event
        trading_day_start transform
    """,
    "qts.risk": """
        ApprovedOrder CODES Code EMERGENCY_ORDER Effect EmergencyOrder Exposure FailSafe
        FailSafeReporter FailSafeStatus HoldTimeLimits KillSwitch MicroRiskLoop OrderProposal
        PositionShadow PreTradeGate QuoteSnapshot REASONS Reason Refusal RiskConfig RiskLimits
        RiskLimitsConfig RiskSnapshot SafetyLogEntry SafetyMonitor SafetyState StopRecord
        StopsConfig Switch Switches exit_quantity is_transient load_stop_records save_stop_records
        stop_all_accounts
    """,
    "qts.router": """
        BurstProfile EdgeConfig EdgeSender Indicator JournalConfig JournalReplay Layout MESSAGE
        Message MessageHandler Options Pacing Percentiles PlacementPlan ProgressLine QueueLocation
        Router RouterReport RunSnapshot Scenario Sink Source StallFloor StrategyCount StreamDigest
        WaitStrategy WorkerPlan batch builtin_scenarios compare_digests compiled each ema
        load_last_report load_scenario plan_placement read_stream_digests rsi save_last_report
        strategies_only vwap watch_run
    """,
    "qts.router.distributed": "EdgeConfig EdgeSender Sink Source strategies_only",
    "qts.simulators": """
        Fault KisKey KisSimulator KisSimulatorConfig MarketConfig RequestLimits SimulatedClock
        Simulator UpbitKey UpbitSimulator UpbitSimulatorConfig
    """,
    "qts.strategies": """
        MovingAverageSwing NoParams Numbers RsiScalper Signal Step StepStrategy Strategy
        StrategyKind SurgeBreakout Tick View builtin_strategies compile_step load_strategy
    """,
    "qts.telemetry": """
        CONTENT_TYPE Ids LatencyHistogram LogThrottle Span TelemetryConfig configure context counter
        current_context export_host_metrics gauge histogram hold_lines latency lazy_context
        lines_dropped log_every logger metric_samples new_trace_id redact_text release_lines
        render_metrics serve_metrics shutdown span tracing
    """,
    "qts.venues": """
        BeforeSend BookLevel ClockSkew FillNotice KisClient KisConfig KisEndpoint KisQuotes
        KisStream MAX_WATCHED_SHARE NotSupportedError OrderBook Quota Quote RateLimitConfig
        RateLimitedError
        RateLimiter RateLimiterStatus RequestPriority UpbitClient UpbitConfig UpbitStream UsageLog
        VenueRejectedError VenuesConfig connect_kis quota_for symbols_per_call
    """,
    "qts.venues.kis": """
        FillNotice KisClient KisEndpoint KisQuotes KisStream Reply connect_kis symbols_per_call
    """,
    "qts.venues.upbit": "UpbitClient UpbitStream",
    "qts.verify": """
        BaselineReport BenchResult DashboardLoadReport IsolationLoad IsolationReport LaneReport
        OrderLatencyReport measure_dashboard_load measure_order_latency measure_outbox
        verify_isolation
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_locked(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == set(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    face = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(face, name)] == []


def test_every_package_is_in_the_table() -> None:
    stubs = SOURCE.rglob("__init__.pyi")
    packages = {".".join(("qts", *stub.parent.relative_to(SOURCE).parts)) for stub in stubs}
    assert packages == set(PUBLIC)


def test_a_public_class_name_is_defined_once() -> None:
    """One word for one concept: two classes of one name would be two meanings of it."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_an_exported_function_outlives_the_import_of_its_module() -> None:
    """`qts.pipeline.act` is a module and an exported function: the import must not replace it."""
    code = "import qts.pipeline.act, qts.pipeline as p; assert callable(p.act), p.act"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_qts_is_light() -> None:
    """`import qts` loads no driver, no compiler and no terminal library."""
    heavy = {"asyncpg", "redis", "aiohttp", "numpy", "numba", "typer", "rich", "uvloop", "msgspec"}
    code = "import sys, qts; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(loaded.stdout.split())
