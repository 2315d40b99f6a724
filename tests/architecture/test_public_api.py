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
        Account BacktestConfig BacktestResult Bar Cancel Fill IntentType NoParams OrderSnapshot
        OrderType Position Replace Side Signal StepStrategy Strategy Tick TimeInForce Timeframe View
        __version__ load_strategy load_tape run_backtest
    """,
    "qts.app": """
        AccountSettings App ChosenVenue DashboardLaunch DashboardProcess RehearsalOptions
        RunListener RunSummary ServerInfo SimulatedVenue StartupInfo TradingAccount TradingSummary
        TradingSystem backtest_config build_app cache_url check_key check_settings connect_history
        create_strategies
        dashboard_launch database_url describe_lease hand_over history_is_simulated history_rules
        login_link observe_venue open_database open_status_store open_store plan_observation
        rehearse request_level resolve_home restore_backup run_account run_accounts serve_dashboard
        start_servers trading_calendar write_backup
    """,
    "qts.backtest": """
        BacktestCompleted BacktestConfig BacktestFailed BacktestJobHandler BacktestRequested
        BacktestResult BarTape Chunk DataInfo DataSelection EquityPoint HtmlPage JobRow OpenTrade
        Opening Performance StrategyResult Tape Trade daily_returns day_closes default_instruments
        list_jobs load_instruments performance recorded_tape render_html render_table result_frame
        run_backtest select_tape show_job submit_job to_json
    """,
    "qts.brokers": """
        ACKNOWLEDGEMENT AccountLease AccountTakenError Broker BrokerOptions BrokersConfig
        CalendarOptions ConnectOptions ExecutionReport FeesConfig KisBroker LeaseStatus OrderMatches
        OrderPreview PaperBroker PaperConfig PaperMatchingEngine PaperOrder Rehearsal RehearsalEnd
        RehearsalStart
        RehearsalStep SimulatorOptions StreamGap SymbolForm Transcript
        UpbitBroker Venue VenueBlockedError VenueConnection VenueSimulator account_key
        is_account_locked key_digest list_accounts mask_secrets match_orders open_account
        read_lease read_leases request_handover
        require_live_consent require_rehearsal venue_of venue_settings
    """,
    "qts.cache": """
        BreakerConfig Cache CacheAlert CacheConfig CacheEntry CacheLoader CacheStatus CacheStore
        CachedLevel CachedOrder CachedOrderBook CachedPosition CachedPrice CachedRisk
        CachedStrategyParams Invalidation PreCheck ServerStatus StoreWrite TradeIds Ttls
        inspect_server read_raw
    """,
    "qts.config": """
        Config LoadedConfig Origin Setting describe load render render_template resolve settings_of
        toml with_keys write_private
    """,
    "qts.dashboard": """
        ACKNOWLEDGEMENT AcknowledgeAlertsAction Action ActionLog ActionResult ActionRow
        ActionService ActionsPage AlertsPage ApiToken ApiTokens ClosePositionsAction
        DEFAULT_PORT DailyReport Dashboard DashboardConfig DashboardSources DeadLettersPage
        EquityPage FillRow FillsPage LiveStatus LiveStatusSource ManualOrderError Operator
        OrderPage OrdersPage OutboxPage PlaceOrderAction PositionsPage RiskPage Role
        RunsPage StatusPage StrategiesPage TerminalSnapshot Tokens Top address_of bind_socket
        day_bounds frame load_report openapi_document parse_day preview_close read_live
        render_report_html render_report_table serve
    """,
    "qts.dashboard.terminal": "LiveStatusSource StatusSource TerminalSnapshot Top frame",
    "qts.database": """
        AppliedMigration Connection Database DatabaseConfig Isolation ListenStarted Listener
        Migration MigrationStatus Notification Ping Row load_queries migrate migration_status
        require_schema savepoint
    """,
    "qts.domain": """
        ALWAYS_OPEN Account AccountKey AttemptState BOOK_MAX_AGE_S Bar BookLevel BrokerOrder
        CacheStaleDataError Clock ConfigError EventRefusedError ExitLevels FailSafeChanged
        FILL_AT_ONCE FeeSchedule Fill Holding HomeInUseError Instrument InstrumentClass Instruments
        IntentType
        KRX_TICKS KillSwitchChanged LaneFullError MANUAL ManualClock Market OperationError OrderBook
        OrderRequest OrderSnapshot OrderState OrderTerms OrderType OutcomeUnknownError Position
        PriceDataUnavailableError QtsError RefusedError ScenarioError SchemaTooNewError Secret
        STOPS ServerFailedError Side StrategyDisabled StrategyParamsChanged SystemClock TICK_TABLES
        Tick TimeLimit
        TimeInForce Timeframe TradeLimitExceededError UPBIT_TICKS UnreachableError
        assumed_instrument check_name exact_decimal good_until krx_instrument name_choices
        nearest_name parse_duration split_names unknown_instrument upbit_instrument
    """,
    "qts.embedded": """
        Binary EmbeddedConfig EmbeddedServers Home HomeLock NatsServer NatsServerConfig
        PostgresServer ValkeyServer default_home find_binaries
    """,
    "qts.events": """
        AUDIT_ACTIONS AUDIT_DTYPE AccountEvents AsyncPublisher Catalogue DeadLetter DeadLetterAdmin
        DeadLetterBuffer DegradationLevel EVENT_DTYPE EngineStatus Event EventEngine EventHandler
        EventPort EventType EventsConfig LaneAlert LaneConfig LaneStatus Latency Payload Pressure
        Priority Publisher SLA StopReport StoredDeadLetter batch compiled factory log_alert
        replay_audit rows
    """,
    "qts.explain": """
        DayExplanation DayLedger DayOrder DaySources Item LiveDay PARTS attribute explain_day
        load_live_day render_explanation_html render_explanation_tables
    """,
    "qts.feed": """
        BurstManager CATALOGUE Demand Feed FeedCallbacks FeedConfig FeedStatus FileLayout FileRows
        InstrumentList InstrumentStore InstrumentSync ObservationSnapshot Observer PatternRecord
        Poller PollerStatus PriceCache PriceFeed QuoteIngest Recorder SEOUL ScanPlan Surge
        SurgeDetector
        TickBuilder TradingCalendar check_distinct export_parquet find_files is_recorded plan_scan
        plan_scan_offline pyarrow_module read_catalogue read_frame read_market_file read_records
        read_symbols recorded_days replay symbols_by_venue
    """,
    "qts.history": """
        BarCatalogue DownloadPlan DownloadProgress DownloadResult Downloader Finding
        ImportedSeries RecentBars RecentRows Series SeriesInfo check_catalogue check_symbol
        import_files parse_moment plan_download
    """,
    "qts.notify": """
        AlertRule AlertStore AlertWriter BotCommand Caller ChannelGoneError ChannelStatus
        Confirmation Message MessageDeclinedError MessageStore NotificationChannel
        NotificationService NotifyConfig PushConfig QueuedMessage RULES RecentAlert RecentAlerts
        RetryLaterError STORED Severity SlackConfig StoredAlert TelegramBot TelegramConfig
        WebhookConfig address_hash grafana_dashboard new_key prometheus_rules public_key read_key
        subscribe unsubscribe wake_senders
    """,
    "qts.optimise": """
        ClusterPool ClusterWorker Fold METRICS ReturnMoments SearchSpace StudyFile StudyInfo
        StudyPlan StudyResult TrialContext WorkerPool deflated_sharpe expected_best_sharpe
        make_folds render_study_html
        render_study_table run_study start_fork_server study_identity study_json study_name
        study_warnings trial_count
    """,
    "qts.orders": """
        AccountListener AccountState AttemptChanged BaselineHolding CancelOrder CancelStopOrder
        CarryOutManually ClosePositions CreateOrderAttempt DatabaseSafetyControls ExecutionContext
        FiguresOfDay FillApplied FillOwners FillReceived FillReported IntentRef LEDGER_CHANNEL
        Ledger ManualCommand ManualOrder ManualRefusal ManualRequest ManualResult ManualState
        MarketResumed MarketSuspended NewCommand OpenOrder OrderAbsent OrderAccepted OrderChanged
        OrderClosed OrderExecutor OrderHistory OrderLatency OrderListener OrderManager
        OrderRejected OrderRow OrderSuspended OrderThrottled OrderUnknown OrderUpdate OrdersConfig
        OutcomePendingError PlaceOrder PositionMismatch PositionRow PositionState Reconcile
        ReconcileCheck ReconcileReport Reconciler ResolveCounts SafetyControls StrategyFigures
        StrategyProfit merged_profits strategy_profits SubmitResult SuspensionChanged
        SymbolSuspension TimeInForceEnforcer WAITING accept_holding add_up load_owned_fills
        rounded_parts adopt_holding check_broker check_instrument check_ledger_symbol
        check_reconciled check_symbol end_command external_fill freeze_position half_sold_symbols
        intents_of_signals list_baseline list_orders list_positions list_suspensions
        load_account_state load_baseline open_intents order_history order_latency order_terms
        read_command request_command resolve_manually resume_manually signal_id_for start_command
        symbols_on_order wait_for_outcome
    """,
    "qts.outbox": """
        BACKTEST_COMMAND BACKTEST_EVENT BornClaim Consumer Delivery Depth Dispatcher Envelope
        EventBus EventDispatcher EventRow KafkaBus KafkaBusConfig NatsBus NatsBusConfig OutboxAdmin
        OutboxConfig OutboxDeadLetter OutboxEvent OutboxEventRefusedError OutboxHandler
        OutboxMaintenance OutboxWorker PermanentError PostgresBus Relay RelayedBus RetryableError
        SYSTEM_EVENT StreamConfig TRADE_COMMAND TRADE_EVENT TRADE_EXIT UnknownOutcomeError WORKERS
        close_nats connect_nats mark_handled nats_address nats_errors nats_urls
        open_bus open_relayed_bus paused_streams stream_depths uuid7
    """,
    "qts.roles": """
        FeedPublisher NO_FEED_STATUS RemoteFeed RemotePipeline RemoteRunner ReportReceiver
        ReportSender ReportedEvents Role RoleConnection RoleStatus SignalReceiver check_nats
    """,
    "qts.pipeline": """
        BarInput CallError CallResult Cycle Decision DecisionJournal DecisionPolicy
        DecisionReplayReport
        EtedaPipeline Evaluation Execution HeldValue IntentTracker IsolatedRunner JournalHeader
        JournaledRun JournaledStore MAX_ERRORS_IN_A_ROW MarketCalls MarketState MarketStatus
        NOT_TRIGGERED StopOrder StopOrderBook check_venues check_venues_by_form waits_until
        OrderSubmitter OrderUpdatePublisher ParamsChange PipelineConfig PipelineHooks
        PipelineSuspension Portfolio PortfolioState PortfolioStore RunnerHooks SEOUL SignalOutcome
        StepFailedError StrategyConfig StrategyRunner StrategyUpdate TickPublisher account_of act
        call_with_update cash_change check_returned clear_state compute_exposure decide evaluate
        equity_of extract has_method held_by journal_files list_states load_journaled_run
        merged_markets own_stops
        read_header replay_decisions replay_states select_instances sides_in_flight
        strategy_instances strategy_names symbol_values takes_updates trading_day_start transform
        with_strategies
    """,
    "qts.risk": """
        AccountFacts ApprovedOrder CODES Code EMERGENCY_ORDER Effect EmergencyOrder Exposure
        FailSafe FailSafeReporter FailSafeStatus FillLimits GUARDRAILS HoldTimeLimits
        IndexVolatility KillSwitch MicroRiskLoop OrderProposal PositionShadow PreTradeGate
        QuoteSnapshot REASONS Reason Refusal RiskConfig RiskLimits RiskLimitsConfig RiskSnapshot
        SafetyLogEntry SafetyMonitor SafetyState StopRecord StopsConfig StrategyLimits
        PositionStops StrategyLimitsConfig StrategyStopsConfig Switch Switches
        ageless exit_quantity is_transient load_stop_records save_stop_records stop_all_accounts
    """,
    "qts.router": """
        BAR BarIndicator BarSession BurstProfile ClosedBars EdgeConfig EdgeSender Indicator
        JournalConfig JournalReplay Layout MESSAGE MarketCounts MarketPlane Message MessageHandler
        Options Pacing Percentiles PlacementPlan ProgressLine QueueLocation Router RouterReport
        RunSnapshot Scenario Sink Source StallFloor StrategyCount StreamDigest TICK WaitStrategy
        WorkerPlan bar_indicator bar_session batch builtin_scenarios compare_digests compiled each
        ema load_last_report load_scenario plan_placement read_stream_digests rsi save_last_report
        step_indicator strategies_only vwap watch_run
    """,
    "qts.router.distributed": "EdgeConfig EdgeSender Sink Source strategies_only",
    "qts.simulators": """
        Fault KisKey KisSimulator KisSimulatorConfig MarketConfig RequestLimits SimulatedClock
        Simulator UpbitKey UpbitSimulator UpbitSimulatorConfig
    """,
    "qts.strategies": """
        BarSubscription Cancel Instruction MovingAverageSwing NoParams NoState Numbers Replace
        RsiScalper Signal Step StepStrategy Strategy StrategyBars StrategyKind SurgeBreakout Tick
        View WarmUpCount bar_subscription builtin_strategies compile_step encode_state load_strategy
        source_digest
    """,
    "qts.telemetry": """
        CONTENT_TYPE Ids LatencyHistogram LogThrottle MetricTable Span TelemetryConfig configure
        context counter current_context export_host_metrics gauge histogram hold_lines latency
        lazy_context lines_dropped log_every logger metric_samples new_trace_id recorded redact_text
        release_lines render_metrics serve_metrics shutdown span trace_id_of tracing
    """,
    "qts.testing": """
        BrokerMarket BrokerRecord BrokerSuite CalendarSuite FaultKind HistorySuite
        InstrumentSuite NetworkedBrokerSuite NetworkedMarket QuoteSuite ReportListener
        VenueSuite
    """,
    "qts.venues": """
        BUILT_IN BarHistory BarPage BeforeSend Calendar ClockSkew EarliestBars FillNotice
        HistoryRules IndexQuote IndexSource InstrumentSource KisClient KisConfig KisEndpoint
        KisHistory KisHistoryRules KisQuotes KisStream MAX_WATCHED_SHARE MarketData
        NO_SUCH_SYMBOL NotSupportedError PublishedDays Quota Quote QuoteSource
        RateLimitConfig RateLimitedError RateLimiter RateLimiterStatus RequestPriority
        TickStream TradingSession UpbitClient UpbitConfig UpbitHistory UpbitHistoryRules
        UpbitQuoteSource UpbitStream UsageLog VenueLimits VenueRejectedError VenuesConfig
        check_venue_names connect_kis day_close describe_venue fetch_kis_instruments
        fetch_upbit_instruments is_loopback is_venue kis_limits kis_market_data load_venue
        market_of_venue parse_master quota_for symbols_per_call unpack_master upbit_limits
        upbit_market_data venue_names
    """,
    "qts.venues.kis": """
        FillNotice KisClient KisEndpoint KisQuotes KisStream Reply connect_kis symbols_per_call
    """,
    "qts.venues.upbit": "UpbitClient UpbitStream",
    "qts.verify": """
        BaselineReport BenchResult DashboardLoadReport IsolationLoad IsolationReport LaneReport
        OrderLatencyReport RoleTicksReport measure_dashboard_load measure_order_latency
        measure_outbox measure_role_ticks
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


def test_opening_the_database_loads_only_its_driver() -> None:
    """`qts kill on` must not wait for libraries of the feed, the cache and the strategies."""
    heavy = {"redis", "aiohttp", "numpy", "numba", "holidays"}
    code = "import sys, qts.app; qts.app.open_database; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(loaded.stdout.split())
