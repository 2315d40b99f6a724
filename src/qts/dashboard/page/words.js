// Every word the pages say, in English and Korean.
const WORDS = {
  overview: ["Overview", "요약"], events: ["Events", "이벤트"], feed: ["Feed", "시세 수신"],
  market: ["Market", "시장"], orders: ["Orders", "주문"], strategies: ["Strategies", "전략"],
  outbox: ["Outbox", "아웃박스"], cache: ["Cache", "캐시"], router: ["Router", "라우터"],
  backtests: ["Backtests", "백테스트"], settings: ["Settings", "설정"],
  state: ["State", "상태"], mode: ["Mode", "모드"], paper: ["PAPER", "모의"], live: ["LIVE", "실거래"],
  profit_today: ["Profit today", "오늘 손익"], realised: ["realised", "실현"], open_pnl: ["open", "미실현"],
  equity: ["Equity", "평가 자산"], cash: ["Cash", "현금"], positions: ["Open positions", "보유 종목"],
  orders_today: ["Orders today", "오늘 주문"], ticks: ["Ticks", "틱"], alerts: ["Alerts", "경보"],
  no_alerts: ["Nothing to report.", "경보가 없습니다."], nothing_held: ["Nothing is held.", "보유 종목이 없습니다."],
  kill_switch: ["Kill switch", "비상 정지"], stop_trading: ["STOP TRADING", "거래 중지"],
  allow_trading: ["Allow trading", "거래 허용"], trading_on: ["Trading is allowed", "거래가 허용됨"],
  trading_off: ["Trading is STOPPED", "거래가 중지됨"], release: ["Release the fail-safe", "안전 상태 해제"],
  reason: ["Reason", "사유"], cancel: ["Cancel", "취소"], confirm: ["Confirm", "확인"],
  not_running: ["NOT RUNNING", "실행 중 아님"], not_running_text: ["No run tells of itself here. Start one: qts run", "실행 중인 QTS가 없습니다. qts run 으로 시작하세요."],
  lost: ["CONNECTION LOST", "연결 끊김"], symbol: ["Symbol", "종목"], quantity: ["Quantity", "수량"],
  average: ["Average", "평균가"], price: ["Price", "가격"], pnl: ["P/L", "손익"], strategy: ["Strategy", "전략"],
  event_system_status: ["EVENT SYSTEM STATUS", "이벤트 시스템 상태"], priority: ["Priority", "우선순위"],
  depth: ["Depth", "대기"], max: ["Max", "최대"], status: ["Status", "상태"], per_second: ["Events/s", "초당 이벤트"],
  handled: ["Handled", "처리"], dropped: ["Dropped", "버림"], merged: ["Merged", "병합"], dead: ["Dead", "실패"],
  level: ["Degradation", "저하 단계"], latency: ["Latency, ms (limit)", "지연, ms (한도)"],
  latency_p99: ["Latency p99, ms", "p99 지연, ms"], rates: ["Events per second", "초당 이벤트 수"],
  drops_by_symbol: ["Drops by symbol", "종목별 버림"], no_drops: ["Nothing was dropped.", "버린 이벤트가 없습니다."],
  dead_letters: ["Dead letters", "처리 실패 이벤트"], none: ["None.", "없음"], replay: ["Replay", "재발행"],
  type: ["Type", "종류"], handler: ["Handler", "처리기"], error: ["Error", "오류"], at: ["At", "시각"],
  plan: ["Plan", "계획"], interval: ["Interval", "주기"], scans: ["Scans", "스캔"], progress: ["Progress", "진행"],
  budget: ["Request budget", "요청 한도"], second: ["this second", "초"], minute: ["this minute", "분"], day: ["today", "오늘"],
  left: ["left", "남음"], bursts: ["Bursts", "집중 관찰"], surges: ["Surges", "급등"], refused: ["Refused", "거절"],
  failed: ["Failed", "실패"], streaming: ["Stream", "스트림"], records: ["Records", "기록"], market_open: ["Market open", "장 운영"],
  candles: ["Candles", "캔들"], book: ["Order book", "호가"], no_ticks: ["No recorded tick of this symbol.", "기록된 틱이 없습니다."],
  bid: ["Bid", "매수호가"], ask: ["Ask", "매도호가"], side: ["Side", "구분"], fills: ["Fills", "체결"],
  no_orders: ["No orders.", "주문이 없습니다."], timeline: ["Timeline", "진행 과정"], signal: ["signal", "신호"],
  intent: ["intent", "의도"], attempt: ["attempt", "시도"], ack: ["accepted", "접수"], fill: ["fill", "체결"],
  reconcile: ["Reconcile now", "지금 대조"], reconciled_at: ["Books compared", "장부 대조 시각"],
  needs_person: ["a person has to choose", "사람의 확인 필요"], only_open: ["open only", "미완료만"], all: ["all", "전체"],
  stream: ["Stream", "스트림"], pending: ["Pending", "대기"], processing: ["In hand", "처리 중"], oldest: ["Oldest, s", "가장 오래된 것, 초"],
  throughput: ["Done/s", "초당 처리"], requeue: ["Requeue", "재처리"], outcome_checked: ["I looked: it did not take effect", "확인함: 반영되지 않았음"],
  attempts: ["Attempts", "시도"], latest: ["Latest events", "최근 이벤트"], aggregate: ["Aggregate", "대상"],
  hit_rate: ["Hit rate", "적중률"], goal: ["Goal", "목표"], kind: ["Kind", "종류"], breaker: ["Breaker", "차단기"],
  queue: ["Write queue", "쓰기 대기열"], server: ["Server", "서버"], memory: ["Memory", "메모리"], questions: ["asked, last minute", "최근 1분 조회"],
  no_router: ["No router runs in this run. qts route SCENARIO runs one.", "이 실행에는 라우터가 없습니다. qts route SCENARIO 로 실행하세요."],
  no_backtests: ["No backtest was run on this database.", "백테스트 기록이 없습니다."], signals: ["Signals", "신호"], errors: ["Errors", "오류"],
  set_params: ["Set", "적용"], given_up: ["given up", "중단됨"], default: ["default", "기본값"], find: ["find", "찾기"],
  actions: ["What was done here", "여기서 한 일"], actor: ["Who", "누가"], action: ["Action", "동작"], outcome: ["Outcome", "결과"],
  help: ["Keys: 1–9, 0, - pages · k stop trading · t theme · l language · ? this", "단축키: 1–9, 0, - 페이지 · k 거래 중지 · t 테마 · l 언어 · ? 도움말"],
  suspended: ["Suspended markets", "중지된 종목"], unknown_orders: ["Orders whose outcome is UNKNOWN", "결과를 모르는 주문"],
  logout: ["Log out", "로그아웃"], may_not: ["your role may only look", "조회 권한만 있습니다"], uptime: ["since", "시작"],
  refusals: ["Refused by the gate", "위험 관문 거절"], sure_stop: ["No new order leaves after this. Orders at the broker stay; cancels still flow.", "새 주문이 나가지 않습니다. 이미 낸 주문은 그대로이며 취소는 가능합니다."],
  sure_allow: ["Orders may leave again after this.", "주문이 다시 나갈 수 있습니다."],
  sure_release: ["Trading goes on after this. Look first: positions, orders, the log.", "이후 거래가 재개됩니다. 먼저 보유, 주문, 기록을 확인하세요."],
  chart_profit: ["Profit over the last minutes", "최근 손익"], suspended_cycles: ["cycles are suspended", "사이클 중지"], books_open: ["books not compared yet", "장부 미대조"],
};

let chosen = localStorage.getItem("qts-language") ?? (navigator.language.startsWith("ko") ? "ko" : "en");
export const language = () => chosen;
export function choose(next) {
  chosen = next;
  localStorage.setItem("qts-language", next);
  document.documentElement.lang = next;
}
export const t = (key) => WORDS[key]?.[chosen === "ko" ? 1 : 0] ?? key;
