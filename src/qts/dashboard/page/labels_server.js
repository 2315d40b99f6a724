// Korean of the sentences that the server writes in English: refusals, outcomes of actions, troubles, figures of the run.
// The English sentence is the code, {} stands for a value; the Korean one places the values by their number.
import { CODES, STATES } from "./labels_codes.js";

export const SENTENCES = {
  // outcomes of actions
  "{} may trade": "{1}: 거래 허용됨", "{} is stopped": "{1}: 거래 중지됨", "the fail-safe is {}": "안전 상태: {1}",
  "cancel requested": "취소를 요청했습니다", "nothing is left to cancel": "취소할 잔량이 없습니다", "reconciliation requested": "대조를 요청했습니다",
  "{} alert{} acknowledged": "경보 {1}건 확인됨", "event {} is {}": "이벤트 {1}: {2}", "dead letter {} is {}": "처리 실패 이벤트 {1}: {2}",
  "browser {} receives orders and critical alerts": "브라우저 {1}에서 주문과 위험 경보를 받습니다", "browser {} is unsubscribed": "브라우저 {1}의 알림을 껐습니다", "browser {} is unknown": "브라우저 {1}은 등록되어 있지 않습니다",
  "nothing is held and no order is open": "보유 종목도 미체결 주문도 없습니다",
  // manual orders
  "BUY {} {}": "{2} {1} 매수", "SELL {} {}": "{2} {1} 매도", "{} filled": "{1} 체결", "{} is open at the venue, {} filled": "{1} 미체결, {2} 체결됨",
  "{} has an unknown outcome: do not order it again, QTS looks it up, {}": "{1} 결과 미확인: 다시 주문하지 마세요. QTS가 조회합니다 ({2})", "see qts orders show {}": "qts orders show {1} 참고",
  "{} {}, {} filled{}": "{1} {2}, {3} 체결됨{4}", "BUY {} {} {}, {} filled{}": "{2} {1} 매수: {3}, {4} 체결됨{5}", "SELL {} {} {}, {} filled{}": "{2} {1} 매도: {3}, {4} 체결됨{5}",
  "{} open order{} cancelled": "미체결 주문 {1}건 취소됨", "{} still open at the venue": "거래소에 미체결 {1}건 남음", "still held: {}": "아직 보유: {1}", "{} refused: {} {}": "{1} 거부: {2} ({3})",
  "refused, nothing was sent: {}": "거부되어 아무것도 전송하지 않았습니다: {1}", "while it is on, no order leaves, a close included: qts kill off first": "켜져 있는 동안에는 청산을 포함한 어떤 주문도 나가지 않습니다. 먼저 거래를 허용하세요",
  "the run that took it ended before it stored the order; nothing was sent": "주문을 저장하기 전에 실행이 끝나 아무것도 전송하지 않았습니다",
  "no run trades account {}, and nothing was requested; start qts run, then repeat this": "계좌 {1}을 거래하는 실행이 없어 요청하지 않았습니다. qts run 을 시작한 뒤 다시 하세요",
  "no run took it before its deadline; nothing was sent": "기한 안에 받은 실행이 없어 아무것도 전송하지 않았습니다",
  "the run has taken the command and not ended it; if the run died, the next qts run ends it. The same id asks for its outcome and orders nothing again": "실행이 명령을 받았지만 아직 끝내지 않았습니다. 실행이 죽었다면 다음 qts run 이 끝냅니다. 같은 id는 결과만 조회하며 다시 주문하지 않습니다",
  "id {} is that of another manual command ({}); leave --id out for a new one": "id {1}은 다른 수동 명령({2})의 것입니다. 새 명령에는 id를 지정하지 마세요",
  // refusals
  "{} does not belong to one account; leave account out": "{1}: 한 계좌에 속한 동작이 아닙니다. 계좌 없이 실행하세요",
  "{} needs the role {}, not {}": "{1}: {2} 권한이 필요합니다 (현재 {3})", "order {} is not one of account {}": "주문 {1}은 계좌 {2}의 주문이 아닙니다", "no order {}; see qts orders list": "주문 {1}이 없습니다",
  "strategy {} is not running; running: {}": "전략 {1}은 실행 중이 아닙니다. 실행 중: {2}", "strategy {} is unknown; {}": "알 수 없는 전략 {1}: {2}", "position {} is unknown; {}": "보유하지 않은 종목 {1}: {2}", "account {} is unknown; {}": "알 수 없는 계좌 {1}: {2}",
  "{} {} is unknown; {}": "알 수 없는 값 {2} ({1}): {3}", "expected one of {}": "다음 중 하나여야 합니다: {1}", "none is known": "알려진 것이 없습니다", "{}; did you mean {}?": "{1}. 혹시 {2}?", "{} and {} more": "{1} 외 {2}개", " and {} more": " 외 {1}개",
  "account is missing; expected one of {}": "계좌를 지정해야 합니다: {1}", "unknown parameter {}; expected one of {}": "알 수 없는 매개변수 {1}. 가능한 값: {2}",
  "{} is {}; expected {}": "{1} 값 {2}: {3}여야 합니다", "{} is {}; expected {} {}": "{1} 값 {2}: {3} {4}여야 합니다", "{} is {}; expected one of {}": "{1} 값 {2}: 다음 중 하나여야 합니다: {3}",
  "{} is {}; expected at least {}": "{1} 값 {2}: {3} 이상이어야 합니다", "{} is {}; expected at most {}": "{1} 값 {2}: {3} 이하여야 합니다", "{} is {}; expected above {}": "{1} 값 {2}: {3}보다 커야 합니다", "{} is {}; expected below {}": "{1} 값 {2}: {3}보다 작아야 합니다",
  "{} is {}; expected more than 0 and less than {}": "{1} 값 {2}: 0보다 크고 {3}보다 작아야 합니다",
  "event {} is not in the outbox": "이벤트 {1}이 아웃박스에 없습니다", "event {} is {}; only a DEAD one can be changed": "이벤트 {1}: {2}. 처리 실패 상태만 변경할 수 있습니다",
  "event {} may have taken effect; check, and requeue it with --outcome-checked if it did not": "이벤트 {1}은 이미 반영되었을 수 있습니다. 확인한 뒤 반영되지 않았을 때만 다시 처리하세요",
  "no dead letter has number {}; run qts ops dead-letters list": "처리 실패 이벤트 {1}번이 없습니다", "dead letter {} was already replayed at {} UTC": "처리 실패 이벤트 {1}은 이미 {2} UTC에 재발행되었습니다",
  "alert {} is not open; see qts ops alerts list": "경보 {1}은 미확인 상태가 아닙니다", "a release needs a name and a reason": "해제에는 이름과 사유가 필요합니다", "setting the kill switch needs an actor": "비상 정지를 바꾸려면 누가 하는지 알아야 합니다",
  "invalid push subscription; expected JSON with endpoint (https) and keys.p256dh, keys.auth, as PushSubscription.toJSON() returns it": "알림 등록 정보가 올바르지 않습니다",
  "invalid symbol {}; expected one like 005930 or KRW-BTC": "잘못된 종목 {1}. 예: 005930, KRW-BTC", "cursor is {}; expected the next_cursor of an earlier answer": "cursor 값 {1}: 이전 응답의 next_cursor 여야 합니다", "no log {}; there are: {}": "로그 {1}이 없습니다. 있는 것: {2}",
  "{} is given more than once": "{1} 값이 여러 번 지정되었습니다", "{} contains a zero byte": "{1} 값에 0 바이트가 있습니다", "the body contains a zero byte (\\u0000)": "본문에 0 바이트가 있습니다", "the body is not JSON: {}": "본문이 JSON이 아닙니다: {1}",
  "unknown field {}; expected one of {}": "알 수 없는 항목 {1}. 가능한 항목: {2}", "{} is missing; expected {}": "{1} 값이 없습니다. 필요한 값: {2}", "{}: {}{}; allowed: {}": "{1} 값이 올바르지 않습니다 ({2}{3}). 허용: {4}",
  // requests
  "unknown host name; add it to dashboard.names": "알 수 없는 호스트 이름입니다. dashboard.names 에 추가하세요", "request from another origin": "다른 사이트에서 온 요청입니다", "not logged in": "로그인되어 있지 않습니다", "{} is missing or wrong": "{1} 값이 없거나 틀립니다",
  "too many failed logins; wait a minute": "로그인 실패가 너무 많습니다. 1분 후 다시 시도하세요", "unknown token": "알 수 없는 토큰입니다", "{} pages are open already": "이미 {1}개의 페이지가 열려 있습니다", "expected a WebSocket request": "WebSocket 요청이어야 합니다",
  "internal error; see the dashboard's log": "내부 오류입니다. 대시보드 로그를 확인하세요", "Not Found": "찾을 수 없습니다", "Method Not Allowed": "허용되지 않은 방법입니다", "Request Entity Too Large": "요청이 너무 큽니다", "Unauthorized": "로그인되어 있지 않습니다",
  // troubles
  "not read yet": "아직 읽지 못함", "its status cannot be read: {}": "상태를 해석할 수 없음: {1}", "PostgreSQL at {} is unreachable: {}": "PostgreSQL({1})에 연결할 수 없음: {2}",
  "connection to PostgreSQL at {} was lost during a write: {}; whether it was committed is not known": "쓰는 도중 PostgreSQL({1}) 연결이 끊김: {2}. 반영 여부를 알 수 없음",
  "PostgreSQL at {} cancelled a statement: {} (database.statement_timeout_s is {})": "PostgreSQL({1}): 명령이 취소됨: {2} (database.statement_timeout_s = {3})", "PostgreSQL at {} cannot write: {}; nothing was changed": "PostgreSQL({1})에 쓸 수 없음: {2}. 변경된 것은 없음",
  "PostgreSQL at {}: no lock within {} s (database.idle_transaction_timeout_s); nothing was changed": "PostgreSQL({1}): {2}초 안에 잠금을 얻지 못함. 변경된 것은 없음",
  "all {} connections to PostgreSQL at {} were in use for {} s; release them sooner or raise database.pool_max": "PostgreSQL({2}) 연결 {1}개가 {3}초 동안 모두 사용 중임",
  "the host name is not known": "호스트 이름을 찾을 수 없음", "connection refused": "연결 거부됨", "no answer in time": "제때 응답이 없음",
  "circuit open: the cache server failed too often": "캐시 서버가 자주 실패하여 차단됨", "the cache server did not reply in time": "캐시 서버가 제때 응답하지 않음", "{} cannot serve now: {}": "{1}: 지금 처리할 수 없음: {2}", "{} refused: {}": "{1}: 거절됨: {2}",
  "no reply in time": "제때 응답이 없음", "invalid cache URL: {}": "잘못된 캐시 URL: {1}", "the connection to {} is closed": "{1} 연결이 닫혀 있음", "the connection to {} was cut: {}": "{1} 연결이 끊김: {2}", "not the Redis protocol": "Redis 프로토콜이 아님",
  "the server closed it": "서버가 닫음", "no reply for {} ms": "{1} ms 동안 응답 없음", "{} calls to {} are pending": "{2} 요청 {1}건이 대기 중", "it was closed": "닫힘", "its handshake failed": "연결 절차 실패", "no reply from {}: {}": "{1} 응답 없음: {2}", "it was refused": "거부됨",
  "{} refused the handshake: {}": "{1}: 연결 절차가 거절됨: {2}", "no reply from the cache server: {}": "캐시 서버 응답 없음: {1}", "the cluster of {}": "{1} 클러스터", "all {} connections to a node of the cluster are in use": "클러스터 노드 연결 {1}개가 모두 사용 중",
  // figures of the run
  "no scan: the day's requests are used up": "스캔 없음: 오늘 요청 한도를 모두 사용함", "{} s scan, {} calls, {}/s, {} % of today's quota": "{1}초마다 스캔, 호출 {2}회, 초당 {3}회, 오늘 한도의 {4} %",
  "{} not polled: the day's requests are used up": "{1}개 조회 안 함: 오늘 요청 한도를 모두 사용함", "{} polled every {} s = {}/s": "{1}개를 {2}초마다 조회 = 초당 {3}회", "{} streamed": "{1}개 스트림", "{} streamed, {}": "{1}개 스트림, {2}",
  "{} MB free, feed.min_free_mb is {}": "여유 공간 {1} MB, feed.min_free_mb = {2}", "{} of {} series": "시계열 {2}개 중 {1}개", "a call did not return within {} s": "호출이 {1}초 안에 끝나지 않음", "{} errors in a row: {}": "오류 연속 {1}회: {2}",
  // details of alerts
  "index {}, realised {}": "지수 {1}, 실현 {2}", "{} s old": "{1}초 전 것", "{}: the price is {} s old": "{1}: 시세가 {2}초 전 것", "open losses are {} of {} won": "미실현 손실 {1}원 / 자산 {2}원", "every position that can be sold is sold": "매도할 수 있는 보유분을 모두 매도함",
  "{}: {}, closed at {}": "{1}: {2}, {3}에서 청산", "{}: held for {} s, closed after {} s": "{1}: {2}초 보유, {3}초 후 청산", "{}: more than {} times in a minute": "{1}: 1분에 {2}회 초과", "{}: from {} to {}": "{1}: {2}에서 {3}(으)로", "by {} of the equity between two checks": "두 점검 사이에 자산의 {1}",
  "an order of {} for {} is refused": "전략 {1}의 {2} 주문이 거부됨", "a cycle of {} took {} s": "{1} 사이클에 {2}초 걸림", "held before QTS, and left alone: {}": "QTS 이전 보유분, 그대로 둠: {1}", "the venue's is {} s ahead of ours; run NTP": "거래소 시각이 {1}초 빠름. NTP를 실행하세요",
  "{} stream connected": "{1} 스트림 연결됨", "{} stream disconnected; prices are polled meanwhile": "{1} 스트림 끊김. 그동안 시세를 조회함", "{} {}: {} worse than {}": "{1} {2}: {4}보다 {3} 불리함", "{} {}: filled after {} s": "{1} {2}: {3}초 후 체결", "account {} was taken by {}": "계좌 {1}을 다른 실행이 넘겨받음: {2}", "process {} on {}, home {}, since {}": "호스트 {2}의 프로세스 {1}, 홈 {3}, 시작 {4}",
  "{} failed on {} {}: {}": "{1}: {2} {3} 처리 실패: {4}", "{}'s process {}; restarting it": "{1} 프로세스: {2}. 다시 시작함", "{}'s lane could not be restarted: {}": "{1} 레인을 다시 시작하지 못함: {2}", "{} is {} full: {}": "{1} 사용률 {2}: {3}", "degradation LEVEL_{} to LEVEL_{} {}": "저하 단계 LEVEL_{1} → LEVEL_{2} {3}", "only P0 is handled": "P0만 처리함",
  "P0 was full for {} publisher(s)": "P0가 가득 차 발행 {1}건이 기다림", "P0 waited {} ms for the interpreter, held by {}": "P0가 인터프리터를 {1} ms 기다림 ({2} 사용 중)", "{} took {} ms, more than its event type allows": "{1}: {2} ms 걸림, 이벤트 종류의 한도 초과", "{} has been running for {} s": "{1}: {2}초째 실행 중", "P0's lane failed; suspend trading: {}": "P0 레인 실패, 거래 중지: {1}", "{}'s thread failed: {}": "{1} 스레드 실패: {2}",
  "{} is {} ms over the last {}, above {} ms": "{1}: 최근 {3} 동안 {2} ms, 한도 {4} ms 초과", "ten minutes": "10분", " ({} more suppressed)": " (외 {1}건 생략)",
  // what to do about an alert
  "check qts orders list --state UNKNOWN; never resend it manually": "qts orders list --state UNKNOWN 으로 확인하고 절대 직접 다시 주문하지 마세요", "trade less often or lower the limits of the key": "거래 횟수를 줄이거나 키의 한도를 낮추세요", "wait until the block has ended, then run qts failsafe release": "차단이 끝난 뒤 qts failsafe release 를 실행하세요",
  "check the network and the status page of the venue; orders wait or are UNKNOWN": "네트워크와 거래소 공지를 확인하세요. 주문은 대기하거나 결과 미확인이 됩니다", "find what else uses the key, or lower its limits in venues": "같은 키를 쓰는 다른 프로그램을 찾거나 venues 의 한도를 낮추세요", "watch fewer symbols; quotes stop first, orders last": "관찰 종목을 줄이세요. 시세가 먼저, 주문이 마지막에 멈춥니다",
  "check the network; prices and fills are polled meanwhile": "네트워크를 확인하세요. 그동안 시세와 체결을 조회합니다", "see the reasons in qts orders list --state REJECTED": "qts orders list --state REJECTED 로 사유를 확인하세요", "stop with qts kill on, then check qts ops outbox status": "qts kill on 으로 중지한 뒤 qts ops outbox status 를 확인하세요", "inspect it with qts ops outbox list --status DEAD before you requeue it": "다시 처리하기 전에 qts ops outbox list --status DEAD 로 확인하세요",
  "check qts ops outbox status and the venue; close the position there if need be": "qts ops outbox status 와 거래소를 확인하고, 필요하면 거래소에서 직접 청산하세요", "read qts failsafe status, fix the cause, then run qts failsafe release": "qts failsafe status 를 읽고 원인을 해결한 뒤 qts failsafe release 를 실행하세요", "check the lanes in qts top, and the log for GIL stalls": "qts top 에서 레인을, 로그에서 GIL 정체를 확인하세요", "stop with qts kill on; a P0 handler hangs": "qts kill on 으로 중지하세요. P0 처리기가 멈춰 있습니다",
  "watch fewer symbols or give the machine more cores": "관찰 종목을 줄이거나 코어를 늘리세요", "see docs/operations.md, lost Redis": "docs/operations.md 의 Redis 항목을 참고하세요", "read the log; the strategy is suspended if errors continue": "로그를 확인하세요. 오류가 계속되면 전략이 중지됩니다", "check venues.kis.hts_id, and whether another program uses the key": "venues.kis.hts_id 와 같은 키를 쓰는 프로그램이 있는지 확인하세요",
  "free space, or lower feed.keep_days; recording resumes on its own": "공간을 확보하거나 feed.keep_days 를 줄이세요. 기록은 저절로 다시 시작됩니다", "move old recordings away, or reduce outbox.keep_days": "오래된 기록을 옮기거나 outbox.keep_days 를 줄이세요", "find what uses it; the system may kill QTS": "메모리를 쓰는 것을 찾으세요. 시스템이 QTS를 종료할 수 있습니다",
};
// A value that is a word of the server.
const WORDS = {
  minute: "1분", account: "계좌", all: "전체", none: "없음", on: "켜짐", off: "꺼짐", read: "조회", trade: "거래", admin: "관리", integer: "정수", number: "숫자", string: "문자", boolean: "true 또는 false",
  kill: "비상 정지", release: "안전 상태 해제", cancel: "주문 취소", close: "청산", place: "주문", acknowledge: "경보 확인", reconcile: "대조", requeue: "재처리", replay: "재발행", params: "매개변수 변경", subscribe: "알림 켜기", unsubscribe: "알림 끄기", login: "로그인",
};

const escaped = (text) => text.replace(/[.*+?^$()[\]\\|]/g, "\\$&");
const patterns = (value) => Object.entries(SENTENCES)
  .map(([english, korean]) => [new RegExp(`^${english.split("{}").map(escaped).join(value)}$`, "s"), korean, english.replaceAll("{}", "").length])
  .sort((a, b) => b[2] - a[2]); // the one that says most
const NARROW = patterns("((?:(?!; ).)*?)");
const WIDE = patterns("(.*?)");

const match = (list, text) => {
  for (const [pattern, korean] of list) {
    const found = pattern.exec(text);
    if (found) return korean.replace(/\{(\d)\}/g, (_, at) => translate(found[at]));
  }
  return null;
};
// A sentence, or several with semicolons between them; those of several accounts begin with the account. Null: it has no Korean.
function sentence(text) {
  const named = /^(\w+:[0-9a-f]{8}): (.*)$/s.exec(text);
  if (named) return `${named[1]}: ${translate(named[2])}`;
  const coded = /^((?:FS|GR|AN)\d{3}|G_[A-Z_]+)(?: (.*))?$/s.exec(text);
  if (coded) return CODES[coded[1]] ? `${coded[1]} ${CODES[coded[1]]}${coded[2] ? ` (${coded[2]})` : ""}` : null;
  const more = /^(.*)( \(\d+ more suppressed\))$/s.exec(text);
  if (more) return `${translate(more[1])}${match(NARROW, more[2])}`;
  // An alert rule: its name and sentence, the value, and what to do.
  const ruled = /^(\w+): .*: value (\S+); (.*)$/s.exec(text);
  if (ruled && CODES[ruled[1]]) return `${CODES[ruled[1]]} (${ruled[2]}); ${translate(ruled[3])}`;
  const whole = match(NARROW, text);
  if (whole !== null) return whole;
  const parts = text.split("; ").map((part) => (text.includes("; ") ? sentence(part) : null));
  if (parts.every((part) => part !== null)) return parts.join("; ");
  return match(WIDE, text);
}
export const translate = (text) => (text ? WORDS[text] ?? STATES[text] ?? sentence(text) ?? text : "");
