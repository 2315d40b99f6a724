"""PreCheck: refuses an entry before the gate reads the database, by what the cache holds.

    Decide ─▶ PreCheck ──refused──▶ counted; no statement to PostgreSQL
                 └──────passed────▶ Act: gate, order

It runs the rules of the gate on a snapshot that assumes the best where the cache knows nothing: no
pending sale, no suspension, no order in the last minute. What it refuses, the gate refuses as well;
what it passes, the gate decides. Exits pass always.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from qts import telemetry
from qts.cache import Cache, PreCheck
from qts.domain import Clock, OperationError
from qts.pipeline.cache_loader import ACCOUNT, AccountCacheWriter
from qts.pipeline.cycle import Cycle, Decision
from qts.pipeline.decision_journal import Entry, PreCheckEntry
from qts.pipeline.risk_snapshot import RiskSources, quote_of
from qts.risk import Exposure, OrderProposal, PreTradeGate, Refusal, RiskSnapshot

log = telemetry.logger("pipeline")
_REFUSED = telemetry.counter("qts_precheck_refusals_total", "reasons PreCheck gave", ("code",))

_MAX_SIGNALS = 2_000
_NONE: frozenset[str] = frozenset()
_ZERO = Decimal(0)


class PreCheckStep:
    """Step between Decide and Act, for one event loop."""

    def __init__(
        self,
        cache: Cache,
        sources: RiskSources,
        gate: PreTradeGate,
        writer: AccountCacheWriter,
        clock: Clock,
        record: Callable[[Entry], None] | None = None,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._gate = gate
        self._writer = writer
        self._clock = clock
        self._record = record
        self._intents: OrderedDict[UUID, UUID] = OrderedDict()  # by signal, of this run
        self.refusals: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # by strategy and code

    def submitted(self, signal_id: UUID, intent_id: UUID) -> None:
        """Remember the order of a signal: the signal is not acted on again."""
        self._intents[signal_id] = intent_id
        if len(self._intents) > _MAX_SIGNALS:
            self._intents.popitem(last=False)

    async def __call__(self, cycle: Cycle) -> Cycle:
        """Return the cycle without the proposals that are refused."""
        decisions = tuple([await self._checked(each) for each in cycle.decisions])
        return replace(cycle, decisions=decisions)

    async def check(self, proposal: OrderProposal) -> tuple[str, ...]:
        """Return the codes of a refusal; none: the gate decides."""
        if proposal.intent_type.is_exit or not self._writer.is_current:
            return ()
        intent = self._intents.get(proposal.signal_id)
        try:
            found = await self._cache.precheck(
                proposal.symbol, ACCOUNT, str(intent) if intent else None, load=False
            )
        except OperationError:
            return ()
        if found.order is not None:
            return ("G_REPEATED",)
        checked = self._gate.check(proposal, self.snapshot(proposal, found))
        if not isinstance(checked, Refusal):
            return ()
        return tuple(reason.code for reason in checked.reasons)

    def snapshot(self, proposal: OrderProposal, found: PreCheck) -> RiskSnapshot:
        """Build the most favourable snapshot that the cached values allow."""
        now, equity = self._clock.now(), self._sources.portfolio.equity
        position, risk, whole = found.position, found.risk, max(equity, Decimal(1))
        return RiskSnapshot(
            instrument=self._sources.portfolio.instruments[proposal.symbol],
            market=quote_of(found.price, now, self._sources.base(found.price.symbol)),
            exposure=Exposure(
                position=position.qty if position else _ZERO,
                pending_buy=_ZERO,
                pending_sell=_ZERO,
                symbol_value=position.exposure_pct * whole if position else _ZERO,
                total_value=risk.exposure_used * whole,
                open_symbols=risk.open_symbols if position is None else 0,
                cash=self._sources.portfolio.cash,
                equity=equity,
                daily_pnl=risk.daily_pnl,
                orders_today=max(risk.trade_count, self._writer.orders_today()),
                orders_last_minute=0,
                symbol_unknown=0,
            ),
            switches=self._sources.switches(proposal, _NONE, _NONE),
            now=now,
        )

    async def _checked(self, decision: Decision) -> Decision:
        proposal = decision.proposal
        if proposal is None or not (codes := await self.check(proposal)):
            return decision
        for code in codes:
            _REFUSED.labels(code).inc()
            self.refusals[code] += 1
            self.refused[proposal.strategy_key, code] += 1
        if self._record is not None:
            self._record(PreCheckEntry(proposal.signal_id, codes))
        log.debug("refused by PreCheck", symbol=proposal.symbol, side=proposal.side, codes=codes)
        return Decision(decision.signal, None, "PreCheck: " + " ".join(codes))
