// Texts of the pages, in English and Korean, and the choices of the operator that this browser keeps.
import { CODES, STATES } from "./labels_codes.js";

const LABELS = {
  overview: ["Overview", "요약"], events: ["Events", "이벤트"], feed: ["Feed", "시세 수신"],
  market: ["Market", "시장"], orders: ["Orders", "주문"], strategies: ["Strategies", "전략"],
  outbox: ["Outbox", "아웃박스"], cache: ["Cache", "캐시"], router: ["Router", "라우터"],
  backtests: ["Backtests", "백테스트"], settings: ["Settings", "설정"],
  pages: ["Pages", "페이지"], more: ["More", "더보기"], skip: ["Skip to the content", "본문으로 건너뛰기"],
  role_read: ["role: read", "권한: 조회"], role_trade: ["role: trade", "권한: 거래"], role_admin: ["role: admin", "권한: 관리"],
  display: ["Display", "화면"], language: ["Language", "언어"], dark: ["dark", "어둡게"], light: ["light", "밝게"],
  colours: ["Rise and fall", "등락 색상"], colours_green: ["green, red", "초록·빨강"], colours_kr: ["red, blue", "빨강·파랑"],
  number: ["No.", "번호"], count: ["Count", "횟수"], window: ["Window", "구간"], setting: ["Setting", "설정"], value: ["Value", "값"], description: ["Description", "설명"], message: ["Message", "내용"],
  cache_near: ["near", "근거리"], cache_redis: ["Redis", "Redis"], cache_database: ["database", "데이터베이스"], cache_absent: ["absent", "없음"], cache_stale: ["stale", "오래됨"], cache_failed: ["failed", "실패"],
  evicted: ["Evicted", "제거됨"], clients: ["Clients", "접속"], market_order: ["market", "시장가"], buy: ["Buy", "매수"], sell: ["Sell", "매도"],
  price_chart: ["Price chart of", "가격 차트"], bar_open: ["open", "시가"], bar_high: ["high", "고가"], bar_low: ["low", "저가"], bar_close: ["close", "종가"], volume: ["volume", "거래량"],
  zoom_in: ["Zoom in", "확대"], zoom_out: ["Zoom out", "축소"], zoom_all: ["All", "전체"],
  approved: ["approved", "승인"], whole_life: ["From the first step to the last:", "첫 단계부터 마지막 단계까지:"],
  bad_param: ["{param} is {text}; expected {type}", "{param} 값 {text}: {type} 형식이어야 합니다"],
  no_trades: ["No round trips in this span.", "이 기간에 완료된 거래가 없습니다."], opened: ["Opened (KST)", "진입 시각 (KST)"], closed: ["Closed (KST)", "청산 시각 (KST)"], entry: ["Entry", "진입가"], exit: ["Exit", "청산가"], profit: ["Profit", "손익"],
  held_for: ["Held for", "보유 시간"], exit_reason: ["Exit reason", "청산 사유"], by_strategy: ["By strategy", "전략별"], by_symbol: ["By symbol", "종목별"], by_reason: ["By exit reason", "청산 사유별"],
  days: ["Days", "일별"], download: ["Download CSV", "CSV 내려받기"], wins: ["Wins", "이익 거래"], profit_sum: ["Profit", "손익 합계"], average_trade: ["Average trade", "거래당 평균"],
  span_7d: ["7 days", "7일"], span_30d: ["30 days", "30일"], span_90d: ["90 days", "90일"], span_365d: ["1 year", "1년"], span_of: ["Span", "기간"], net_of_fees: ["Profit is after fees and taxes.", "손익은 수수료와 세금을 뺀 값입니다."],
  logs: ["Logs", "로그"], log_file: ["Log file", "로그 파일"], log_run: ["the run", "실행"], log_level: ["Level", "수준"], log_from: ["from", "최소"], log_source: ["Source", "출처"], no_lines: ["No lines.", "해당하는 줄이 없습니다."],
  no_run_log: ["The run logs to standard error. With telemetry.log_file it writes a file, which is shown here.", "실행 로그는 표준 오류로 나갑니다. telemetry.log_file 을 설정하면 파일에 기록되고 여기에 표시됩니다."],
  not_done: ["Not done", "실행되지 않음"], done_kill: ["Kill switch set", "비상 정지 변경됨"], done_release: ["Fail-safe released", "안전 상태 해제됨"], done_cancel: ["Cancel requested", "취소 요청됨"], done_close: ["Closed", "청산 처리됨"],
  done_acknowledge: ["Acknowledged", "경보 확인됨"], done_reconcile: ["Reconciliation requested", "대조 요청됨"], done_replay: ["Replayed", "재발행됨"], done_requeue: ["Requeued", "재처리 요청됨"], done_params: ["Parameters set", "매개변수 적용됨"],
  done_subscribe: ["Notifications on", "알림 켜짐"], done_unsubscribe: ["Notifications off", "알림 꺼짐"],
  mon: ["Mon", "월"], tue: ["Tue", "화"], wed: ["Wed", "수"], thu: ["Thu", "목"], fri: ["Fri", "금"], sat: ["Sat", "토"], sun: ["Sun", "일"],
  paper: ["PAPER", "모의"], live: ["LIVE", "실거래"],
  profit_today: ["Profit today", "오늘 손익"], realised: ["realised", "실현"], open_pnl: ["unrealised", "미실현"],
  equity: ["Equity", "평가 자산"], cash: ["Cash", "현금"], positions: ["Open positions", "보유 종목"],
  weight: ["Weight", "비중"], stop_at: ["Stop at", "손절가"], open_orders: ["Open orders", "미체결 주문"], no_fills: ["No fills in the last seven days.", "최근 7일간 체결이 없습니다."],
  limits: ["Limits used", "한도 사용"], limit: ["Limit", "한도"], used: ["Used", "사용"], no_samples: ["No run has stored a value yet.", "저장된 값이 없습니다."],
  limit_daily_loss: ["Loss today", "오늘 손실"], limit_orders_per_day: ["Orders today", "오늘 주문"], limit_orders_per_minute: ["Orders in a minute", "1분간 주문"], limit_max_open_symbols: ["Symbols held", "보유 종목"], limit_max_exposure: ["Invested", "투자 금액"],
  span_1d: ["1 D", "1일"], span_1w: ["1 W", "1주"], span_1m: ["1 M", "1개월"], span_all: ["All", "전체"],
  orders_today: ["Orders today", "오늘 주문"], ticks: ["Ticks", "틱"], alerts: ["Alerts", "경보"],
  no_alerts: ["No alerts.", "경보가 없습니다."], no_positions: ["No open positions.", "보유 종목이 없습니다."],
  kill_switch: ["Kill switch", "비상 정지"], stop: ["STOP", "정지"], stop_trading: ["STOP TRADING", "거래 중지"],
  allow_trading: ["Allow trading", "거래 허용"], trading_on: ["Trading is allowed", "거래가 허용됨"],
  trading_off: ["Trading is STOPPED", "거래가 중지됨"], release: ["Release the fail-safe", "안전 상태 해제"],
  reason: ["Reason", "사유"], cancel: ["Cancel", "취소"], confirm: ["Confirm", "확인"],
  not_running: ["NOT RUNNING", "실행 중 아님"], 
  lost: ["NO CONNECTION", "연결 없음"], state_unknown: ["STATE UNKNOWN", "상태 알 수 없음"], simulated: ["SIMULATED", "시뮬레이션"], language_code: ["en", "ko"],
  lost_text: ["No connection to the dashboard for {}: whether QTS trades is unknown, all figures are from before.", "{} 동안 대시보드에 연결되지 않음: 거래 여부를 알 수 없으며 모든 수치는 그 이전 것입니다."],
  never_connected: ["No connection to the dashboard's status for {}: whether QTS trades is unknown.", "{} 동안 대시보드 상태에 연결되지 않음: 거래 여부를 알 수 없습니다."],
  connecting: ["Connecting …", "연결 중 …"], figures_old: ["Figures of the run are old:", "실행 수치가 오래됨:"], tables_old: ["tables are old:", "표가 오래됨:"],
  draw_failed: ["This page cannot be drawn", "이 페이지를 그릴 수 없습니다"], theme: ["theme", "테마"],
  title_trading: ["Trading", "거래 중"], title_exits_only: ["Exits only", "청산만"], title_stopped: ["Stopped", "중지됨"], title_unknown: ["Unknown", "알 수 없음"], title_lost: ["No connection", "연결 없음"],
  switch_unknown: ["Unknown whether trading is allowed", "거래 허용 여부를 알 수 없음"], alerts_unknown: ["Alerts of the run are not known.", "실행의 경보를 알 수 없습니다."],
  positions_not_read: ["Positions are not read yet.", "보유 종목을 아직 읽지 못했습니다."], symbol: ["Symbol", "종목"], quantity: ["Quantity", "수량"],
  average: ["Average", "평균가"], price: ["Price", "가격"], pnl: ["P/L", "손익"], strategy: ["Strategy", "전략"],
  event_system_status: ["EVENT SYSTEM STATUS", "이벤트 시스템 상태"], priority: ["Priority", "우선순위"],
  depth: ["Depth", "대기"], max: ["Max", "최대"], status: ["Status", "상태"], per_second: ["Events/s", "초당 이벤트"],
  handled: ["Handled", "처리"], dropped: ["Dropped", "버림"], merged: ["Merged", "병합"], dead: ["Dead", "실패"],
  level: ["Degradation", "저하 단계"], latency: ["Latency, ms (limit)", "지연, ms (한도)"],
  latency_p99: ["Latency p99, ms", "p99 지연, ms"], rates: ["Events per second", "초당 이벤트 수"],
  drops_by_symbol: ["Drops by symbol", "종목별 버림"], no_drops: ["No dropped events.", "버린 이벤트가 없습니다."],
  dead_letters: ["Dead letters", "처리 실패 이벤트"], none: ["None.", "없음"], replay: ["Replay", "재발행"],
  type: ["Type", "종류"], handler: ["Handler", "처리기"], error: ["Error", "오류"], at: ["At (KST)", "시각 (KST)"],
  plan: ["Plan", "계획"], interval: ["Interval", "주기"], scans: ["Scans", "스캔"], progress: ["Progress", "진행"],
  budget: ["Rate limit", "요청 한도"], second: ["this second", "초"], minute: ["this minute", "분"], day: ["today", "오늘"],
  left: ["left", "남음"], bursts: ["Bursts", "집중 관찰"], surges: ["Surges", "급등"], refused: ["Refused", "거절"],
  price_age: ["Price age", "시세 경과"], watched: ["Held or on order", "보유·주문"], failed: ["Failed", "실패"], streaming: ["Stream", "스트림"], records: ["Records", "기록"], market_open: ["Market open", "장 운영"],
  indices: ["Indices", "지수"], volatility_index: ["Volatility index", "변동성 지수"], realised_volatility: ["Realised volatility", "실현 변동성"],
  volume_surges: ["Volume surges, turnover:", "거래량 급증, 거래대금:"],
  book: ["Order book", "호가"], no_ticks: ["No recorded ticks of this symbol.", "기록된 틱이 없습니다."],
  bid: ["Bid", "매수호가"], ask: ["Ask", "매도호가"], side: ["Side", "구분"], fills: ["Fills", "체결"],
  no_orders: ["No orders.", "주문이 없습니다."], timeline: ["Timeline", "진행 과정"], signal: ["signal", "신호"],
  stop_order: ["stop order", "스톱 주문"], trigger: ["trigger", "발동 가격"], intent: ["intent", "의도"], attempt: ["attempt", "시도"], ack: ["accepted", "접수"], fill: ["fill", "체결"],
  reconcile: ["Reconcile now", "지금 대조"], reconciled_at: ["Last reconciled", "장부 대조 시각"],
  needs_person: ["operator must resolve", "사람의 확인 필요"], only_open: ["open only", "미완료만"], all: ["all", "전체"],
  stream: ["Stream", "스트림"], pending: ["Pending", "대기"], processing: ["In flight", "처리 중"], oldest: ["Oldest, s", "가장 오래된 것, 초"],
  throughput: ["Done/s", "초당 처리"], requeue: ["Requeue", "재처리"], outcome_checked: ["I checked: it did not take effect", "확인함: 반영되지 않았음"],
  attempts: ["Attempts", "시도"], latest: ["Latest events", "최근 이벤트"],
  hit_rate: ["Hit rate", "적중률"], goal: ["Goal", "목표"], kind: ["Kind", "종류"], breaker: ["Breaker", "차단기"],
  queue: ["Write queue", "쓰기 대기열"], server: ["Server", "서버"], memory: ["Memory", "메모리"], lookups: ["lookups, last minute", "최근 1분 조회"],
  no_router: ["No router run is stored in this home. Start one: qts dev router run SCENARIO", "저장된 라우터 실행이 없습니다. qts dev router run SCENARIO 로 실행하세요."],
  last_route: ["Last router run", "마지막 라우터 실행"], offered: ["Offered", "제공"], produced: ["Produced", "생성"], delivered: ["Delivered", "전달"],
  undelivered: ["Undelivered", "미전달"], violations: ["Out of order", "순서 위반"], gaps: ["Gaps", "누락"], worker: ["Worker", "작업자"], wait_strategy: ["Wait strategy", "대기 방식"],
  load: ["Load", "부하"], components: ["Components", "구성 요소"], rings: ["rings", "링"], direct_calls: ["direct calls", "직접 호출"],
  push: ["Notifications in browsers", "브라우저 알림"], subscribe: ["Notify this browser", "이 브라우저로 알림 받기"], unsubscribe: ["Stop notifying this browser", "이 브라우저 알림 중지"],
  push_no_key: ["Web push has no key. Create one for [notify.push]: qts ops notify key FILE", "웹 푸시 키가 없습니다. qts ops notify key FILE 로 [notify.push] 키를 만드세요."],
  push_unsupported: ["Not available in this browser: web push needs https or 127.0.0.1.", "이 브라우저에서는 사용할 수 없습니다. https 또는 127.0.0.1 이 필요합니다."],
  browser: ["Browser", "브라우저"], ended: ["ended", "종료"],
  stage: ["Stage", "단계"], stage_latency: ["Latency by stage, microseconds", "단계별 지연, 마이크로초"], messages_per_second: ["Messages/s", "초당 메시지"],
  no_backtests: ["No backtest jobs. Submit one: qts backtest … --job", "백테스트 기록이 없습니다. 실행: qts backtest … --job"], gain: ["Gain", "수익률"], drawdown: ["Max drawdown", "최대 낙폭"], trades: ["Trades", "거래"],
  win_rate: ["win rate", "승률"], costs: ["Costs", "비용"], best_worst: ["Best, worst trade", "최고, 최저 거래"], arguments: ["Arguments", "인자"], signals: ["Signals", "신호"], errors: ["Errors", "오류"],
  set_params: ["Set", "적용"], disabled: ["disabled", "중단됨"], warming_up: ["warming up", "준비 중"], default: ["default", "기본값"], find: ["find", "찾기"],
  actions: ["Operator actions", "여기서 한 일"], actor: ["Actor", "누가"], action: ["Action", "동작"], outcome: ["Outcome", "결과"],
  help: ["Keys: 1–9, 0, -, r, g, a pages · k stop trading · t theme · l language · ? this", "단축키: 1–9, 0, -, r, g, a 페이지 · k 거래 중지 · t 테마 · l 언어 · ? 도움말"],
  suspended: ["Suspended symbols", "중지된 종목"], unknown_orders: ["Orders with an unknown outcome", "결과를 모르는 주문"],
  logout: ["Log out", "로그아웃"], uptime: ["since", "시작"],
  profit_by_strategy: ["Today by strategy", "전략별 오늘 손익"], fees: ["fees", "수수료"], held_value: ["held", "보유 금액"], capital: ["capital", "자본 한도"],
  precheck_refusals: ["Refused by PreCheck", "사전 점검 거절"], refusals: ["Refused by the gate", "위험 관문 거절"], sure_stop: ["No new order is sent after this. Orders at the venue stay open; cancels are still sent. Stop orders that would open a position are cancelled.", "이후 새 주문이 나가지 않습니다. 이미 낸 주문은 그대로이며 취소는 가능합니다. 새로 진입하는 스톱 주문은 취소됩니다."],
  sure_stop_stops: ["Stops do not sell either while the kill switch is on.", "비상 정지가 켜져 있는 동안 손절 주문도 나가지 않습니다."],
  positions_stay: ["{} open positions stay as they are.", "보유 종목 {}개는 그대로 남습니다."], positions_unknown: ["How many positions are open is not known.", "보유 종목 수를 알 수 없습니다."],
  sure_stop_strategy: ["This strategy opens no position after this; its stop orders that would are cancelled. Its stops and exits still sell.", "이 전략은 이후 진입하지 않으며, 새로 진입하는 스톱 주문은 취소됩니다. 손절과 청산은 계속됩니다."],
  cancel_order: ["Cancel the order", "주문 취소"], sure_cancel_stop: ["The stop order waits in QTS and is cancelled there; no venue has it.", "스톱 주문은 QTS 안에서 대기 중이며 QTS에서 취소됩니다. 거래소에는 주문이 없습니다."], sure_cancel: ["What is left of the order is cancelled at the venue; what is filled stays.", "남은 수량이 거래소에서 취소됩니다. 체결된 수량은 그대로입니다."],
  close: ["Close", "청산"], flatten: ["FLATTEN", "전체 청산"],
  sure_close: ["Open orders that are cancelled: {orders}. Positions that are sold at the market: {positions}, about {value}.", "미체결 주문 {orders}건을 취소하고 보유 종목 {positions}개를 시장가로 매도합니다. 약 {value}."],
  sure_close_again: ["Strategies go on and may buy again. What was held before QTS stays.", "전략은 계속 실행되며 다시 매수할 수 있습니다. QTS 이전 보유분은 그대로입니다."],
  close_killed: ["The kill switch is on: this will be refused. Allow trading first.", "비상 정지가 켜져 있어 거절됩니다. 먼저 거래를 허용하세요."],
  handed_over: ["Handed to the running QTS …", "실행 중인 QTS에 전달했습니다 …"],
  acknowledge: ["Acknowledge", "확인"], acknowledge_all: ["Acknowledge all", "모두 확인"], acknowledged: ["acknowledged", "확인됨"],
  no_open_alerts: ["No open alerts.", "미확인 경보가 없습니다."], past_alerts: ["Earlier", "이전"],
  sure_acknowledge: ["It leaves the list of open alerts; who acknowledged it and when is kept.", "미확인 목록에서 사라지며 확인한 사람과 시각이 기록됩니다."],
  sure_acknowledge_all: ["All open alerts, also those that are not shown here.", "여기에 보이지 않는 것을 포함한 모든 미확인 경보."],
  sure_params: ["The running strategy uses these values from now on.", "실행 중인 전략에 바로 적용됩니다."],
  sure_allow: ["Orders can be sent again after this.", "주문이 다시 나갈 수 있습니다."],
  sure_release: ["Trading resumes after this. First check positions, orders and the log.", "이후 거래가 재개됩니다. 먼저 보유, 주문, 기록을 확인하세요."],
  no_reply: ["No reply from the dashboard", "대시보드가 응답하지 않습니다"], push_failed: ["Not subscribed", "알림을 등록하지 못했습니다"], push_blocked: ["The browser blocks notifications from this page.", "브라우저가 이 페이지의 알림을 차단했습니다."],
  runs: ["Runs", "실행 목록"], run: ["Run", "실행"], mode: ["Mode", "구분"], mode_unknown: ["unknown", "알 수 없음"], status_age: ["Status age", "상태 경과"], unknown_short: ["Unknown outcomes", "결과 미확인"], sentence: ["Whether it trades", "거래 여부"],
  run_active: ["active", "거래 실행"], run_silent: ["silent", "응답 없음"], run_waiting: ["standby takes over", "대기 실행이 인계 중"], run_ended: ["ended", "종료됨"], standby: ["standby", "대기"], never_allowed: ["never allowed", "허용된 적 없음"], allowed: ["allowed", "허용"],
  sums: ["Sums by mode and currency", "구분·통화별 합계"], sum_of: ["{counted} of {accounts} accounts", "계좌 {accounts}개 중 {counted}개"], not_counted: ["not counted, old or unknown", "오래되었거나 알 수 없어 제외"], sums_note: ["A sum adds only figures that are at most five seconds old. LIVE, PAPER and SIMULATED are never added to each other.", "합계에는 5초 이내의 수치만 더합니다. 실거래, 모의, 시뮬레이션은 서로 더하지 않습니다."],
  no_runs: ["No run has stored a status in the last seven days.", "최근 7일간 상태를 저장한 실행이 없습니다."], trades_silent: ["Unknown: a run holds the account and does not report.", "알 수 없음: 계좌를 사용하는 실행이 상태를 보내지 않습니다."], trades_waiting: ["Not yet: a standby is about to take the account.", "아직 아님: 대기 실행이 계좌를 넘겨받는 중입니다."], trades_ended: ["No: no run has the account.", "아니요: 계좌를 사용하는 실행이 없습니다."],
  own_run: ["this dashboard", "이 대시보드"], own_run_back: ["the run of this dashboard", "이 대시보드의 실행"], on_account: ["On another run: account {}", "다른 실행의 계좌: {}"],
  clock_skew: ["venue clock", "거래소 시각 차"],
};

let current = localStorage.getItem("qts-language") ?? (navigator.language.startsWith("ko") ? "ko" : "en");
export const language = () => current;
export function setLanguage(next) {
  current = next;
  localStorage.setItem("qts-language", next);
  document.documentElement.lang = next;
  korean("server");
}
export const t = (key) => LABELS[key]?.[current === "ko" ? 1 : 0] ?? key;
// The name of a state, a side or a kind; states are codes, so that English shows them as they are stored.
export const stateName = (code) => (current === "ko" && STATES[code]) || code;
// What a code of the fail-safe, the gate or an alert rule means, in Korean; otherwise the messages say it.
export const codeText = (code) => (current === "ko" ? CODES[code] : undefined);
// Modules that only Korean pages load: sentences of the server with the first page, descriptions with the settings. A text is
// English until its module is there.
const loaded = {};
function korean(name) {
  if (current !== "ko") return null;
  if (!(name in loaded)) {
    loaded[name] = null;
    import(`./labels_${name}.js`).then((found) => (loaded[name] = found)).catch(() => delete loaded[name]);
  }
  return loaded[name];
}
// A sentence of the server, or a word of it.
export const serverText = (text) => korean("server")?.translate(text) ?? text ?? "";
export const settingText = (text) => korean("settings")?.DESCRIPTIONS[text] ?? text;

export const colours = () => localStorage.getItem("qts-colours") ?? "green";
export function setColours(next) {
  localStorage.setItem("qts-colours", next);
  document.documentElement.dataset.colours = next;
}
